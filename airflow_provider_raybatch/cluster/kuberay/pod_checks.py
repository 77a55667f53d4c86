# SPDX-License-Identifier: Apache-2.0
"""Arguments that become pods, or parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.cluster.kuberay import kube_names
from airflow_provider_raybatch.cluster.kuberay.plain_secrets import check_variable_value
from airflow_provider_raybatch.coercion import from_text, typed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError

OF_MOUNT = ("mountPath", "readOnly", "subPath")
"""What a volume says of its mount, beside what Kubernetes calls a volume."""
SHARED_MEMORY = "shared-mem"
"""Our volume for ``/dev/shm``, named as KubeRay names its own."""

_MOST_GPUS = 16
"""Of one node, whatever the cloud."""
_HEAD = ("cpus", "memory", "node_selector", "tolerations")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")
_REFERENCES = ("secretKeyRef", "configMapKeyRef", "fieldRef", "resourceFieldRef")
_SET_BY_KUBERAY = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ADDRESS", "RAY_IP", "RAY_enable_autoscaler_v2")


def check_head(name: str, value: Any) -> None:
    """Refuse what does not describe a head."""
    if not isinstance(value, Mapping):
        raise SpecError(f"{name}: it must be a dictionary with cpus and memory, but it is {shown(value)}.")
    for key, inner in value.items():
        if key not in _HEAD:
            raise SpecError(f"{name}: {shown(key)} is unknown; known are {', '.join(_HEAD)}.")
        field = f"{name}: {key}"
        if inner is None:
            continue
        if key == "cpus":
            kube_names.check_cpus(field, inner)
        elif key == "memory":
            kube_names.check_memory(field, inner)
        elif key == "tolerations":
            check_tolerations(field, inner)
        elif not isinstance(inner, Mapping):
            raise SpecError(f"{field}: it must be a dictionary, but it is {shown(inner)}.")


def check_tolerations(name: str, value: Any) -> None:
    """Refuse what is not a list of Kubernetes' tolerations."""
    if not isinstance(value, (list, tuple)):
        raise SpecError(f"{name}: it must be a list of dictionaries, but it is {shown(value)}.")
    for one in value:
        if not isinstance(one, Mapping) or not one or not set(one) <= set(_TOLERATION):
            raise SpecError(
                f"{name}: {shown(one)} is not a toleration; known fields are {', '.join(_TOLERATION)}."
            )


def check_environment(name: str, value: Any) -> None:
    """Refuse what can't be an environment, and secrets in plain text."""
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{name}: it must be a dictionary, but it is a {type(value).__name__}; give names and values."
        )
    for variable, content in value.items():
        kube_names.check_variable(name, variable)
        if variable in _SET_BY_KUBERAY:
            raise SpecError(f"{name}: {variable} is set for each cluster; remove it.")
        if isinstance(content, Mapping):
            _check_reference(f"{name}: {variable}", content)
        elif isinstance(content, bool) or not isinstance(content, (str, int, float)):
            raise SpecError(f"{name}: {variable}: a {type(content).__name__} is not text; give it as text.")
        else:
            check_variable_value(name, variable, content)


def _check_reference(field: str, content: Mapping[str, Any]) -> None:
    kinds = [kind for kind in content if kind in _REFERENCES]
    if len(content) != 1 or not kinds or not isinstance(content[kinds[0]], Mapping):
        raise SpecError(
            f"{field}: its value must be text or one of {', '.join(_REFERENCES)}; give "
            "{'secretKeyRef': {'name': ..., 'key': ...}}."
        )
    reference = content[kinds[0]]
    if kinds[0].endswith("KeyRef"):
        for key in ("name", "key"):
            if not isinstance(reference.get(key), str) or not reference[key]:
                raise SpecError(f"{field}: {kinds[0]} needs a {key}; give it.")


def check_volumes(name: str, value: Any) -> None:
    """Refuse what is not a list of volumes with their mounts."""
    if not isinstance(value, (list, tuple)):
        raise SpecError(f"{name}: it must be a list of dictionaries, but it is {shown(value)}.")
    names: set[str] = set()
    for volume in value:
        if not isinstance(volume, Mapping) or "name" not in volume:
            raise SpecError(
                f"{name}: {shown(volume)} has no name; give name, mountPath and the volume's kind."
            )
        title = volume["name"]
        kube_names.check_label_name(f"{name}: name", title)
        if title in names or title == SHARED_MEMORY:
            raise SpecError(f"{name}: {title!r} is the name of another volume; choose another.")
        names.add(title)
        path = volume.get("mountPath")
        if not isinstance(path, str) or not path.startswith("/") or path.rstrip("/") == "/dev/shm":
            raise SpecError(
                f"{name}: {title}: mountPath {shown(path)} is not a folder for it; give an absolute path "
                "other than /dev/shm."
            )
        if len([key for key in volume if key not in ("name", *OF_MOUNT)]) != 1:
            raise SpecError(
                f"{name}: {title}: it needs one kind, such as 'persistentVolumeClaim': {{'claimName': ...}}; "
                "give one."
            )


def check_gpus(name: str, value: Any) -> None:
    """Refuse what is not a number of GPUs of a node."""
    number = _whole(name, value)
    if not 0 <= number <= _MOST_GPUS:
        raise SpecError(f"{name}: {shown(value)} is not a number of GPUs of a node; give 0 to {_MOST_GPUS}.")


def check_range(name: str, value: Any) -> None:
    """Refuse what is neither a number of workers nor fewest and most."""
    worker_range(value, name)


def worker_range(value: Any, name: str) -> tuple[int, int | None]:
    """Fewest and most workers of a number, a pair or the text of one; most may be ``None``.

    :raises SpecError: it is something else.
    """
    value = from_text(value)
    if not isinstance(value, (list, tuple)):
        number = _at_least_0(name, value)
        return number, number
    if len(value) != 2:
        raise SpecError(f"{name}: {shown(value)} is not (fewest, most); give two numbers, or one.")
    fewest = _at_least_0(name, 0 if value[0] is None else value[0])
    if value[1] is None:
        return fewest, None
    most = _at_least_0(name, value[1])
    if fewest > most:
        raise SpecError(f"{name}: the fewest, {fewest}, are more than the most, {most}; exchange them.")
    return fewest, most


def _at_least_0(name: str, value: Any) -> int:
    number = _whole(name, value)
    if number < 0:
        raise SpecError(f"{name}: it must be at least 0, but it is {shown(value)}.")
    return number


def _whole(name: str, value: Any) -> int:
    number = typed(value, int, name)
    if isinstance(number, bool) or not isinstance(number, int):
        raise SpecError(f"{name}: it must be a whole number, but it is {shown(value)}.")
    return number
