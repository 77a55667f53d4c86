# SPDX-License-Identifier: Apache-2.0
"""A DAG's words for the Ray cluster of a task: one that KubeRay makes for the run, or a running one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from os import PathLike
from typing import Any, ClassVar

from airflow_provider_raybatch.cluster.kuberay.checks import check_arguments, check_names, may_be_template
from airflow_provider_raybatch.cluster.kuberay.given_spec import check_given, given_spec, is_missing
from airflow_provider_raybatch.coercion import from_text, is_absent

_REACHES = ("name", "namespace", "kubernetes_conn_id", "dashboard_address")


@dataclass(kw_only=True, repr=False)
class KubeRayCluster:
    """A Ray cluster on Kubernetes, for `ray_cluster` of an operator.

    Without `name`, the task creates a RayJob, whose cluster lives as long as the task's job; KubeRay 1.6 or
    newer makes it. With `name`, the task uses a running RayCluster, and creates and deletes nothing.

    Airflow renders every argument, in lists and dictionaries, too.

    :param image: image of head and workers, with Ray, the engine and what else the job imports.
    :param ray_version: Ray's version in the image, at least 2.56; by default that of the image's tag.
    :param accelerator_type: GPUs of the workers, as Ray names them, such as ``H100``.
    :param gpus_per_worker: GPUs of a worker; by default those of a replica, at most 8. Where the job is not
        known, one with an `accelerator_type`, else none. 0 for none.
    :param workers: a number, or (fewest, most). By default none at first, and at most as many as the most of
        the job's `replicas` need, or 4 replicas (1 without GPUs).
    :param node_selector: labels of the workers' nodes, such as those of the accelerator in a cloud.
    :param kueue_queue: Kueue's local queue, which admits the cluster.
    :param labels: labels of RayJob and pods.
    :param annotations: annotations of RayJob and pods.
    :param pod_override: merged over each pod's template, in Kubernetes' words, as for Airflow's Kubernetes
        executor: service account, secrets, volumes. Its container without a name is Ray's.
    :param patch: merged over the RayCluster's spec; lists of named items are merged by name.
    :param spec: a RayCluster as a dictionary, or the absolute path of its YAML file, in place of the
        arguments about accelerator and workers.
    :param namespace: Kubernetes' namespace; by default the connection's.
    :param kubernetes_conn_id: id of the Airflow connection to Kubernetes.
    :param name: name of a running RayCluster.
    :param dashboard_address: ``service`` inside the cluster, ``proxy`` by the API server, a URL with
        ``{namespace}``, ``{cluster}`` or ``{service}``, or ``auto`` for one of the first two.
    :param cluster_wait: seconds or a timedelta to wait for the cluster.
    :param queue_wait: seconds or a timedelta to wait for Kueue to admit the cluster; by default until the
        task's deadline.
    :param ttl_after_finished: seconds or a timedelta after which KubeRay deletes an ended cluster, should
        Airflow not have done so.
    :raises SpecError: the first mistake that no template decides.
    """

    template_fields: ClassVar[tuple[str, ...]]
    text_fields: ClassVar[frozenset[str]] = frozenset({
        "image", "ray_version", "accelerator_type", "namespace", "kubernetes_conn_id", "kueue_queue", "name",
        "dashboard_address",
    })  # fmt: skip
    """Those that are text whatever it looks like, where a DAG renders native objects."""

    image: str | None = None
    ray_version: str | None = None
    accelerator_type: str | None = None
    gpus_per_worker: int | None = None
    workers: int | tuple[int, int | None] | str | None = None
    node_selector: Mapping[str, str] | None = None
    kueue_queue: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    pod_override: Mapping[str, Any] | None = None
    patch: Mapping[str, Any] | None = None
    spec: Mapping[str, Any] | str | PathLike[str] | None = None
    namespace: str | None = None
    kubernetes_conn_id: str = "kubernetes_default"
    name: str | None = None
    dashboard_address: str = "auto"
    cluster_wait: float | timedelta | str = 1800.0
    queue_wait: float | timedelta | str | None = None
    ttl_after_finished: float | timedelta | str = 600.0

    def __new__(cls, *_: Any, **arguments: Any) -> KubeRayCluster:
        """Refuse a misspelt argument in one sentence, too."""
        check_names(arguments, cls.template_fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuse what no template can put right."""
        self._check(may_be_template, file_may_be_elsewhere=True)

    def check(self) -> None:
        """Refuse a mistake once all is rendered.

        Text that a template has left becomes what it stands for: nothing, a list or a dictionary.

        :raises SpecError: names argument, value and remedy.
        """
        for field in fields(self):
            value = from_text(getattr(self, field.name))
            setattr(self, field.name, field.default if is_absent(value) else value)
        self._check(lambda _: False)

    def _check(self, changes: Callable[[Any], bool], *, file_may_be_elsewhere: bool = False) -> None:
        """Check what `changes` does not hold for."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}
        check_arguments(arguments, self.given, changes)
        if self.spec is None or changes(self.spec) or (file_may_be_elsewhere and is_missing(self.spec)):
            return
        found = given_spec(self.spec)
        if not any(map(changes, (self.namespace, self.image, self.ray_version))):
            check_given(found, self.namespace, self.image, self.ray_version)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not at their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.default is MISSING or getattr(self, field.name) != field.default
        }

    def __repr__(self) -> str:
        """As a call."""
        return f"KubeRayCluster({', '.join(f'{name}={value!r}' for name, value in self.given.items())})"

    def serialize(self) -> dict[str, Any]:
        """For Airflow's pages and serialised DAGs, which show arguments."""
        return self.given

    def to_json(self) -> dict[str, Any]:
        """What reaches the cluster again, for a trigger or a record."""
        return {name: getattr(self, name) for name in _REACHES}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KubeRayCluster:
        """What :meth:`to_json` made: it can be reached, and not created."""
        made = cls.__new__(cls)
        for field in fields(cls):
            setattr(made, field.name, data.get(field.name, field.default))
        return made


KubeRayCluster.template_fields = tuple(field.name for field in fields(KubeRayCluster))
