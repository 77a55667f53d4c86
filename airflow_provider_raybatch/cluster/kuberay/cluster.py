# SPDX-License-Identifier: Apache-2.0
"""A DAG's words for the Ray cluster of a task: one that KubeRay makes for the run, or a running one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from os import PathLike
from typing import Any, ClassVar, Literal

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
    :param gpus_per_worker: GPUs of a worker; by default those of a replica, at most 8. 0 for none.
    :param workers: workers with GPUs: a number, or (fewest, most). By default none at first, and at most as
        many as the most of the job's `replicas` need, or 4 replicas.
    :param cpu_workers: workers without GPUs: a number, or (fewest, most); by default only where a job has no
        GPUs.
    :param cpus_per_worker: CPUs of a worker; by default 3 or 8 a GPU, as nodes of the accelerator have.
    :param memory_per_worker: memory of a worker, such as ``64Gi``; by default 12 or 64 GiB a GPU.
    :param head: `cpus` (default 2), `memory` (default ``8Gi``), `node_selector` and `tolerations` of the
        head, which runs driver, preflight and commit, and no replica.
    :param cloud: whose nodes' labels find the accelerator: ``eks`` with Karpenter, ``eks-auto`` for EKS Auto
        Mode.
    :param node_selector: labels of the workers' nodes, in place of what `cloud` and `accelerator_type` say.
    :param tolerations: taints that workers tolerate, besides ``nvidia.com/gpu``.
    :param namespace: Kubernetes' namespace; by default the connection's.
    :param kubernetes_conn_id: id of the Airflow connection to Kubernetes.
    :param service_account: service account of head and workers; by default KubeRay makes one for the head.
    :param kueue_queue: Kueue's local queue, which admits the cluster.
    :param labels: labels of RayJob and pods.
    :param annotations: annotations of RayJob and pods.
    :param env: environment variables of head and workers: texts, or ``{"secretKeyRef": {...}}`` for secrets.
    :param volumes: Kubernetes' volumes, each with `mountPath` for head and workers, and `readOnly` or
        `subPath`.
    :param image_pull_secrets: names of Secrets with credentials of registries.
    :param image_pull_policy: when an image is pulled; by default as Kubernetes does.
    :param spec: a RayCluster or RayJob as a dictionary, or the absolute path of its YAML file, in place of
        the arguments about head, workers and pods.
    :param patch: merged over the RayCluster's spec; lists of named items are merged by name.
    :param name: name of a running RayCluster.
    :param dashboard_address: ``service`` inside the cluster, ``proxy`` by the API server, a URL with
        ``{namespace}``, ``{cluster}`` or ``{service}``, or ``auto`` for one of the first two.
    :param idle_timeout: seconds or a timedelta after which the autoscaler removes a worker without work.
    :param cluster_wait: seconds or a timedelta to wait for the cluster.
    :param queue_wait: seconds or a timedelta to wait for Kueue to admit the cluster; by default until the
        task's deadline.
    :param ttl_after_finished: seconds or a timedelta after which KubeRay deletes an ended cluster, should
        Airflow not have done so.
    :raises SpecError: the first mistake that no template decides.
    """

    template_fields: ClassVar[tuple[str, ...]]
    text_fields: ClassVar[frozenset[str]] = frozenset({
        "image", "ray_version", "accelerator_type", "memory_per_worker", "namespace", "kubernetes_conn_id",
        "service_account", "kueue_queue", "name", "dashboard_address",
    })  # fmt: skip
    """Those that are text whatever it looks like, where a DAG renders native objects."""

    image: str | None = None
    ray_version: str | None = None
    accelerator_type: str | None = None
    gpus_per_worker: int | None = None
    workers: int | tuple[int, int | None] | str | None = None
    cpu_workers: int | tuple[int, int | None] | str | None = None
    cpus_per_worker: float | str | None = None
    memory_per_worker: str | None = None
    head: Mapping[str, Any] | None = None
    cloud: Literal["gke", "eks", "eks-auto", "aks"] | None = None
    node_selector: Mapping[str, str] | None = None
    tolerations: Sequence[Mapping[str, Any]] | None = None
    namespace: str | None = None
    kubernetes_conn_id: str = "kubernetes_default"
    service_account: str | None = None
    kueue_queue: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    env: Mapping[str, str | Mapping[str, Any]] | None = None
    volumes: Sequence[Mapping[str, Any]] | None = None
    image_pull_secrets: Sequence[str] | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    spec: Mapping[str, Any] | str | PathLike[str] | None = None
    patch: Mapping[str, Any] | None = None
    name: str | None = None
    dashboard_address: str = "auto"
    idle_timeout: float | timedelta | str = 60.0
    cluster_wait: float | timedelta | str = 1800.0
    queue_wait: float | timedelta | str | None = None
    ttl_after_finished: float | timedelta | str = 600.0

    def __new__(cls, *_: Any, **arguments: Any) -> KubeRayCluster:
        """Refuse a misspelt argument in one sentence, too."""
        check_names(arguments, cls.template_fields)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Refuse what no template can put right."""
        self._check(may_be_template)
        if self.spec is not None and not may_be_template(self.spec) and not is_missing(self.spec):
            self._check_spec(may_be_template)

    def check(self) -> None:
        """Refuse a mistake once all is rendered.

        Text that a template has left becomes what it stands for: nothing, a list or a dictionary.

        :raises SpecError: names argument, value and remedy.
        """
        for field in fields(self):
            value = from_text(getattr(self, field.name))
            setattr(self, field.name, field.default if is_absent(value) else value)
        self._check(lambda _: False)
        if self.spec is not None:
            self._check_spec(lambda _: False)

    def _check(self, changes: Callable[[Any], bool]) -> None:
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}
        check_arguments(arguments, self.given, changes)

    def _check_spec(self, changes: Callable[[Any], bool]) -> None:
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
        """As a call, without values of environment variables."""
        shown = {name: value if name != "env" else sorted(value) for name, value in self.given.items()}
        return f"KubeRayCluster({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

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
