# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a KubeRayCluster, each as one sentence with the argument, its value and the remedy."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay.given_spec import ray_version
from airflow_provider_raybatch.cluster.kuberay.plain_secrets import check_manifest
from airflow_provider_raybatch.coercion import from_text, positive_seconds, seconds, typed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import nearest

_MOST_GPUS = 16
"""Of one node, whatever the cloud."""
_STARTS = ("{{", "{%", "{#", "[[", "<<", "${")
"""Of Jinja, and of delimiters that DAGs choose in its place."""
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
        elif name in unknown and name in _WITH_SECRETS:
            check_manifest(name, _settled(given[name], changes))
    _check_together(known, unknown, changed)


def _settled(value: Any, changes: Callable[[Any], bool]) -> Any:
    """A copy without what `changes` holds for."""
    if isinstance(value, Mapping):
        return {key: _settled(inner, changes) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_settled(inner, changes) for inner in value]
    return None if changes(value) else value


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


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(f"{name}: it must be a dictionary, but it is {shown(value)}.")
    return value


def _texts(name: str, value: Any) -> None:
    for key, text in _mapping(name, value).items():
        if not all(isinstance(one, str) for one in (key, text)):
            raise _refusal(f"{name}: {key}", text, "text", "give names and values as text")


def _manifest(name: str, value: Any) -> None:
    check_manifest(name, _mapping(name, value))


def _annotations(name: str, value: Any) -> None:
    _texts(name, value)
    check_manifest(name, value)


def _gpus(name: str, value: Any) -> None:
    number = typed(value, int, name)
    if type(number) is not int or not 0 <= number <= _MOST_GPUS:
        raise _refusal(name, value, "a number of GPUs of a node", f"give 0 to {_MOST_GPUS}")


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


def _address(name: str, value: Any) -> None:
    if value in ("auto", "service", "proxy"):
        return
    if not isinstance(value, str) or not value.startswith(("http://", "https://")) or _unknown_places(value):
        remedy = (
            "use 'auto', 'service', 'proxy' or a URL such as 'https://ray.example.com/{namespace}/{cluster}'"
        )
        raise _refusal(name, value, "an address", remedy)


def _unknown_places(url: str) -> bool:
    try:
        return not {place for _, place, _, _ in string.Formatter().parse(url) if place is not None} <= _PLACES
    except ValueError:
        return True


def _duration(name: str, value: Any) -> None:
    positive_seconds(value, name)


def _duration_or_none(name: str, value: Any) -> None:
    number = seconds(value, name)
    if number is None or number < 0:
        raise SpecError(f"{name}: it must be at least 0 seconds, but it is {value!r}.")


_CHECKS: dict[str, Callable[[str, Any], object]] = {
    "name": _text,
    "namespace": _text,
    "kubernetes_conn_id": _text,
    "image": _text,
    "accelerator_type": _accelerator,
    "gpus_per_worker": _gpus,
    "workers": lambda _, value: worker_range(value),
    "node_selector": _texts,
    "kueue_queue": _text,
    "labels": _texts,
    "annotations": _annotations,
    "pod_override": _manifest,
    "patch": _manifest,
    "spec": check_manifest,
    "dashboard_address": _address,
    "cluster_wait": _duration,
    "queue_wait": _duration,
    "ttl_after_finished": _duration_or_none,
}
_WITH_SECRETS = ("annotations", "pod_override", "patch", "spec")
"""May have a plain secret beside a template, which is refused before the template is rendered."""

_WITH_NAME = frozenset({"name", "namespace", "kubernetes_conn_id", "dashboard_address", "cluster_wait"})
_NOT_WITH_SPEC = frozenset({"accelerator_type", "gpus_per_worker", "workers", "node_selector"})


def _check_together(known: Mapping[str, Any], unknown: Collection[str], changed: Collection[str]) -> None:
    """Refuse arguments that don't go together.

    :param known: those that no template decides, without ``None``.
    :param unknown: names of the others.
    :param changed: names of the arguments that are not at their defaults.
    """
    if "name" in known:
        for other in changed:
            if other not in _WITH_NAME:
                raise SpecError(
                    f"name: {known['name']!r} is a running cluster, which {other} can't change; "
                    f"remove {other}, or name."
                )
        return
    if "spec" in known:
        for other in changed:
            if other in _NOT_WITH_SPEC:
                raise SpecError(
                    f"spec: it decides what {other} would; remove {other}, or write it into patch."
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
        raise SpecError("gpus_per_worker: it is 0, and accelerator_type is about GPUs; remove one of them.")
