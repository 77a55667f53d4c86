# SPDX-License-Identifier: Apache-2.0
"""A DAG's words for the Ray cluster of a task: one that KubeRay makes for the run, or a running one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from os import PathLike
from typing import Any, ClassVar

from airflow_provider_raybatch.coercion import from_text, is_absent, positive_seconds, typed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.kubernetes.user_manifest import (
    check_secrets,
    ray_version,
    read_manifest,
)
from airflow_provider_raybatch.places.providers import ClusterDefinition

_MOST_GPUS = 16
"""Of one node, whatever the cloud."""
_STARTS = ("{{", "{%", "{#", "[[", "<<", "${")
"""Of Jinja, and of delimiters that DAGs choose in its place."""
_REACHES = ("name", "namespace", "kubernetes_conn_id", "dashboard_address")
_WITH_NAME = frozenset({*_REACHES, "cluster_wait"})
_NOT_WITH_SPEC = ("accelerator_type", "gpus_per_worker", "workers", "node_selector")
_WITH_SECRETS = ("pod_override", "spec")
"""May have a plain secret beside a template, which is refused before the template is rendered."""


@dataclass(kw_only=True, repr=False)
class KubeRayCluster(ClusterDefinition):
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
    :param pod_override: merged over each pod's template, in Kubernetes' words, as for Airflow's Kubernetes
        executor: service account, secrets, volumes, labels. Its container without a name is Ray's.
    :param spec: a RayCluster in Kubernetes' own words, as a dictionary or the absolute path of its YAML file,
        in place of the arguments about accelerator and workers.
    :param namespace: Kubernetes' namespace; by default the connection's.
    :param kubernetes_conn_id: id of the Airflow connection to Kubernetes.
    :param name: name of a running RayCluster.
    :param dashboard_address: ``service`` inside the cluster, ``proxy`` by the API server, a URL with
        ``{namespace}``, ``{cluster}`` or ``{service}``, or ``auto`` for one of the first two.
    :param cluster_wait: seconds or a timedelta to wait for the cluster, in a queue and for its nodes.
    :raises SpecError: the first mistake that no template decides.
    """

    provider: ClassVar[str] = "kubernetes"
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
    pod_override: Mapping[str, Any] | None = None
    spec: Mapping[str, Any] | str | PathLike[str] | None = None
    namespace: str | None = None
    kubernetes_conn_id: str = "kubernetes_default"
    name: str | None = None
    dashboard_address: str = "auto"
    cluster_wait: float | timedelta | str = 1800.0

    def __post_init__(self) -> None:
        """Refuse what no template can put right."""
        self._check(may_be_template)

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any]) -> KubeRayCluster:
        """The cluster of arguments by name, such as an XCom has.

        :raises SpecError: one of them is unknown, or can't be used.
        """
        for name in arguments:
            if name not in cls.template_fields:
                known = ", ".join(cls.template_fields)
                raise SpecError(f"{name}: it is not an argument of KubeRayCluster; known are {known}.")
        return cls(**arguments)

    def check(self) -> None:
        """Refuse a mistake once all is rendered.

        Text that a template has left becomes what it stands for: nothing, a list or a dictionary.

        :raises SpecError: names argument, value and remedy.
        """
        for field in fields(self):
            value = from_text(getattr(self, field.name))
            setattr(self, field.name, field.default if is_absent(value) else value)
        self._check(lambda _: False)

    def _check(self, changes: Callable[[Any], bool]) -> None:
        """Check what `changes` does not hold for."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        known = {name: value for name, value in given.items() if not changes(value)}
        for name, check in _CHECKS.items():
            if name in known:
                check(name, known[name])
        for name in _WITH_SECRETS:
            check_secrets(name, given.get(name))
        self._check_together(known, given.keys() - known.keys())
        if "spec" in known:
            manifest = read_manifest(self.spec)
            if not any(map(changes, (self.namespace, self.image, self.ray_version))):
                manifest.check_beside(self.namespace, self.image, self.ray_version)

    def _check_together(self, known: Mapping[str, Any], unknown: set[str]) -> None:
        """Refuse arguments that don't go together.

        :param known: those that no template decides, without ``None``.
        :param unknown: names of the others.
        """
        if "name" in known:
            if others := [other for other in self.given if other not in _WITH_NAME]:
                raise SpecError(
                    f"name: {known['name']!r} is a running cluster, which {others[0]} can't change; "
                    f"remove {others[0]}, or name."
                )
            return
        if "spec" in known:
            if others := [other for other in _NOT_WITH_SPEC if other in self.given]:
                raise SpecError(
                    f"spec: it decides what {others[0]} would; remove {others[0]}, or write it into spec."
                )
        elif {"image", "name", "spec"}.isdisjoint({*known, *unknown}):
            raise SpecError(
                "image: a value is needed to make a cluster; name an image with Ray, or give name or spec."
            )
        if "image" in known and "ray_version" not in unknown and "spec" not in known:
            ray_version(known["image"], known.get("ray_version"))
        elif "ray_version" in known:
            ray_version(None, known["ray_version"])
        gpus = known.get("gpus_per_worker")
        if gpus is not None and typed(gpus, int, "gpus_per_worker") == 0 and "accelerator_type" in known:
            raise SpecError(
                "gpus_per_worker: it is 0, and accelerator_type is about GPUs; remove one of them."
            )

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that are not at their defaults."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
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


def may_be_template(value: Any) -> bool:
    """Whether Airflow may change a value, or a part of it, when the task runs."""
    if isinstance(value, str):
        return any(start in value for start in _STARTS)
    if isinstance(value, Mapping):
        return any(may_be_template(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return any(may_be_template(inner) for inner in value)
    return hasattr(value, "iter_references") or callable(value)


def worker_range(value: Any) -> tuple[int, int | None]:
    """Fewest and most workers of a number, a pair or the text of one; most may be ``None``.

    :raises SpecError: it is something else.
    """
    value = from_text(value)
    pair = value if isinstance(value, (list, tuple)) else (value, value)
    fewest, most = (typed(one, int, "workers") for one in pair) if len(pair) == 2 else (-1, None)
    fewest = 0 if fewest is None else fewest
    given = [fewest] if most is None else [fewest, most]
    if any(type(one) is not int or one < 0 for one in given) or given != sorted(given):
        remedy = "give a whole number of at least 0, or two as (fewest, most)"
        raise _refusal("workers", value, "a number of workers", remedy)
    return fewest, most


def _refusal(name: str, value: Any, what: str, remedy: str) -> SpecError:
    return SpecError(f"{name}: {shown(value)} is not {what}; {remedy}.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise _refusal(name, value, "text", "give it as text")


def _accelerator(name: str, value: Any) -> None:
    from pydantic import TypeAdapter, ValidationError

    from airflow_provider_raybatch.contract.arguments.limits import AcceleratorType

    try:
        TypeAdapter(AcceleratorType).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error") or f"{shown(value)} is not text; give it as Ray names it"
        raise SpecError(f"{name}: {cause}.") from None
    if value.startswith(("TPU-", "Intel-")):
        raise SpecError(f"{name}: workers with {value!r} can't be made of arguments; give spec.")


def _dictionary(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise _refusal(name, value, "a dictionary", "give one")


def _gpus(name: str, value: Any) -> None:
    number = typed(value, int, name)
    if type(number) is not int or not 0 <= number <= _MOST_GPUS:
        raise _refusal(name, value, "a number of GPUs of a node", f"give 0 to {_MOST_GPUS}")


def _address(name: str, value: Any) -> None:
    try:
        url = str(value).format(namespace="n", cluster="c", service="s")
    except (ValueError, LookupError, AttributeError):
        url = ""
    if value not in ("auto", "service", "proxy") and not url.startswith(("http://", "https://")):
        known = "'auto', 'service', 'proxy' or a URL such as 'https://ray.example.com/{namespace}/{cluster}'"
        raise _refusal(name, value, "an address", f"use {known}")


def _duration(name: str, value: Any) -> None:
    positive_seconds(value, name)


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    **dict.fromkeys(("name", "namespace", "kubernetes_conn_id", "image", "kueue_queue"), _text),
    "accelerator_type": _accelerator,
    "gpus_per_worker": _gpus,
    "workers": lambda _, value: worker_range(value),
    "node_selector": _dictionary,
    "pod_override": _dictionary,
    "dashboard_address": _address,
    "cluster_wait": _duration,
}
