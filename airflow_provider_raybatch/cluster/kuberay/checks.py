# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a KubeRayCluster, each as one sentence with the argument, its value and the remedy."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay import kube_names
from airflow_provider_raybatch.cluster.kuberay.given_spec import ray_version
from airflow_provider_raybatch.cluster.kuberay.kueue import QUEUE_LABEL
from airflow_provider_raybatch.cluster.kuberay.plain_secrets import check_manifest, check_texts
from airflow_provider_raybatch.coercion import from_text, positive_seconds, seconds, typed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import nearest

_MOST_GPUS = 16
"""Of one node, whatever the cloud."""
_STARTS = ("{{", "{%", "{#", "[[", "<<", "${")
"""Of Jinja, and of delimiters that DAGs choose in its place."""
_OURS = "raybatch/"
_PLACES = {"namespace", "cluster", "service"}


def may_be_template(value: Any) -> bool:
    """Whether Airflow may change a value, or a part of it, when the task runs."""
    if isinstance(value, str):
        return any(start in value for start in _STARTS)
    if isinstance(value, Mapping):
        return any(may_be_template(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return any(may_be_template(inner) for inner in value)
    return hasattr(value, "iter_references") or callable(value)


def check_names(names: Collection[str], known: Collection[str]) -> None:
    """Refuse the first name that is not an argument."""
    for name in names:
        if name not in known:
            close = nearest(name, known)
            remedy = f"did you mean {close!r}?" if close else f"known are {', '.join(known)}."
            raise SpecError(f"{name}: it is not an argument of KubeRayCluster; {remedy}")


def check_arguments(
    arguments: Mapping[str, Any], changed: Collection[str], changes: Callable[[Any], bool]
) -> None:
    """Refuse the first mistake in arguments that `changes` does not hold for.

    :param arguments: all of a cluster, by name.
    :param changed: names of those that are not at their defaults.
    :raises SpecError: names argument, value and remedy.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    unknown = {name for name, value in given.items() if changes(value)}
    known = {name: value for name, value in given.items() if name not in unknown}
    for name, check in _CHECKS.items():
        if name in known:
            check(name, known[name])
        elif name in unknown and name in _BY_ITEM and isinstance(given[name], Mapping):
            check(name, {key: value for key, value in given[name].items() if not changes(value)})
        elif name in unknown and name in _IN_KUBERNETES_WORDS:
            check_manifest(name, _settled(given[name], changes))
    _check_together(known, unknown, changed)


def _settled(value: Any, changes: Callable[[Any], bool]) -> Any:
    """A copy without what `changes` holds for."""
    if isinstance(value, Mapping):
        return {key: _settled(inner, changes) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_settled(inner, changes) for inner in value]
    return None if changes(value) else value


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{name}: {shown(value)} is not text; give it as text.")


def _image(name: str, value: Any) -> None:
    _text(name, value)
    if any(sign.isspace() for sign in value) or value.startswith(("http:", "https:", "docker:")):
        raise SpecError(f"{name}: {shown(value)} is not an image; name it as in 'registry/name:tag'.")


def _accelerator(name: str, value: Any) -> None:
    from pydantic import TypeAdapter, ValidationError

    from airflow_provider_raybatch.contract.arguments.accelerators import AcceleratorType

    try:
        TypeAdapter(AcceleratorType).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error") or f"{shown(value)} is not text; give it as Ray names it"
        raise SpecError(f"{name}: {cause}.") from None
    if value.startswith(("TPU-", "Intel-")):
        raise SpecError(f"{name}: workers with {value!r} can't be made of arguments; give spec.")


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{name}: it must be a dictionary, but it is {shown(value)}.")
    return value


def _labels(name: str, value: Any) -> None:
    for key, label in _mapping(name, value).items():
        _key(name, key)
        kube_names.check_label(f"{name}: {key}", label)


def _annotations(name: str, value: Any) -> None:
    for key, text in _mapping(name, value).items():
        _key(name, key)
        if not isinstance(text, str):
            raise SpecError(f"{name}: {key}: {shown(text)} is not text; give it as text.")
    check_texts(name, value)


def _key(name: str, key: Any) -> None:
    kube_names.check_key(name, key)
    if str(key).startswith(_OURS):
        raise SpecError(f"{name}: {key!r} would hide the cluster from its own task; use another prefix.")


def _selector(name: str, value: Any) -> None:
    for key, label in _mapping(name, value).items():
        kube_names.check_key(name, key)
        kube_names.check_label(f"{name}: {key}", label)


def _gpus(name: str, value: Any) -> None:
    number = typed(value, int, name)
    if type(number) is not int or not 0 <= number <= _MOST_GPUS:
        raise SpecError(f"{name}: {shown(value)} is not a number of GPUs of a node; give 0 to {_MOST_GPUS}.")


def _range(name: str, value: Any) -> None:
    worker_range(value)


def worker_range(value: Any) -> tuple[int, int | None]:
    """Fewest and most workers of a number, a pair or the text of one; most may be ``None``.

    :raises SpecError: it is something else.
    """
    value = from_text(value)
    pair = value if isinstance(value, (list, tuple)) else (value, value)
    fewest, most = (typed(one, int, "workers") for one in pair) if len(pair) == 2 else (-1, None)
    fewest = 0 if fewest is None else fewest
    if any(type(one) is not int or one < 0 for one in (fewest, most) if one is not None):
        raise SpecError(
            f"workers: {shown(value)} is neither a whole number nor (fewest, most), each at least 0; correct "
            "it."
        )
    if most is not None and fewest > most:
        raise SpecError(f"workers: the fewest, {fewest}, are more than the most, {most}; exchange them.")
    return fewest, most


def _address(name: str, value: Any) -> None:
    if value in ("auto", "service", "proxy"):
        return
    remedy = "use 'auto', 'service', 'proxy' or a URL such as 'https://ray.example.com/{namespace}/{cluster}'"
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        raise SpecError(f"{name}: {shown(value)} is not an address; {remedy}.")
    try:
        places = {place for _, place, _, _ in string.Formatter().parse(value) if place is not None}
    except ValueError:
        places = {"{"}
    if not places <= _PLACES:
        raise SpecError(
            f"{name}: {shown(value)} has other braces than {{namespace}}, {{cluster}} and {{service}}; "
            "remove them."
        )


def _duration(name: str, value: Any) -> None:
    positive_seconds(value, name)


def _duration_or_none(name: str, value: Any) -> None:
    number = seconds(value, name)
    if number is None or number < 0:
        raise SpecError(f"{name}: it must be at least 0 seconds, but it is {value!r}.")


def _patch(name: str, value: Any) -> None:
    if "authOptions" in _mapping(name, value):
        raise SpecError(f"{name}: authOptions: each cluster gets a token of its own; remove it.")
    if "spec" in value or "rayClusterSpec" in value:
        raise SpecError(f"{name}: it is merged over the RayCluster's spec; give what stands inside of spec.")
    check_manifest(name, value)


def _pod_override(name: str, value: Any) -> None:
    if not set(_mapping(name, value)) <= {"metadata", "spec"}:
        raise SpecError(
            f"{name}: it is merged over a pod's template, which has metadata and spec; write what you give "
            "into them."
        )
    check_manifest(name, value)


def _spec(name: str, value: Any) -> None:
    check_manifest(name, value)


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "name": kube_names.check_cluster_name,
    "namespace": kube_names.check_label_name,
    "kubernetes_conn_id": _text,
    "image": _image,
    "accelerator_type": _accelerator,
    "gpus_per_worker": _gpus,
    "workers": _range,
    "node_selector": _selector,
    "kueue_queue": kube_names.check_label_name,
    "labels": _labels,
    "annotations": _annotations,
    "pod_override": _pod_override,
    "patch": _patch,
    "spec": _spec,
    "dashboard_address": _address,
    "cluster_wait": _duration,
    "queue_wait": _duration,
    "ttl_after_finished": _duration_or_none,
}
_IN_KUBERNETES_WORDS = ("pod_override", "patch", "spec")
_BY_ITEM = ("labels", "annotations", "node_selector")
"""Dictionaries whose known items are judged without the others."""

_WITH_NAME = frozenset({"name", "namespace", "kubernetes_conn_id", "dashboard_address", "cluster_wait"})
_NOT_WITH_SPEC = ("accelerator_type", "gpus_per_worker", "workers", "node_selector")


def _check_together(known: Mapping[str, Any], unknown: Collection[str], changed: Collection[str]) -> None:
    """Refuse arguments that don't go together.

    :param known: those that no template decides, without ``None``.
    :param unknown: names of the others.
    :param changed: names of the arguments that are not at their defaults.
    """
    if "name" in known:
        _check_existing(known["name"], changed)
        return
    if "spec" in known:
        _check_with_spec(changed)
    elif "image" not in {*known, *unknown} and not {"name", "spec"} & set(unknown):
        raise SpecError(
            "image: a value is needed to make a cluster; name an image with Ray, or give name or spec."
        )
    if "image" in known and "ray_version" not in unknown and (known.keys().isdisjoint({"spec"})):
        ray_version(known["image"], known.get("ray_version"))
    elif "ray_version" in known:
        ray_version(None, known["ray_version"])
    gpus = known.get("gpus_per_worker")
    if gpus is not None and typed(gpus, int, "gpus_per_worker") == 0 and "accelerator_type" in known:
        raise SpecError("gpus_per_worker: it is 0, and accelerator_type is about GPUs; remove one of them.")
    _check_queue(known)


def _check_existing(name: str, changed: Collection[str]) -> None:
    for other in changed:
        if other not in _WITH_NAME:
            raise SpecError(
                f"name: {name!r} is a running cluster, which {other} can't change; remove {other}, or name."
            )


def _check_with_spec(changed: Collection[str]) -> None:
    for other in _NOT_WITH_SPEC:
        if other in changed:
            raise SpecError(f"spec: it decides what {other} would; remove {other}, or write it into patch.")


def _check_queue(known: Mapping[str, Any]) -> None:
    labelled = (known.get("labels") or {}).get(QUEUE_LABEL)
    if labelled is not None and known.get("kueue_queue") not in (None, labelled):
        raise SpecError(
            f"kueue_queue: it is {known['kueue_queue']!r}, and labels have the queue {labelled!r}; keep one."
        )
