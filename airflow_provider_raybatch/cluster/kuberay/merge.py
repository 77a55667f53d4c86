# SPDX-License-Identifier: Apache-2.0
"""Merge a patch over a RayCluster's spec or a pod's template, as ``kubectl patch`` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.failures import SpecError

_KEYS = {
    "workerGroupSpecs": "groupName",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists whose items are told apart by a key; any other list is replaced."""
_ADDED = frozenset({"tolerations"})
"""Lists that grow: a pod that must tolerate one taint more still tolerates those of its GPUs."""
_WHOLE = frozenset({"env"})
"""Lists whose items are replaced: a variable has a value or a reference, never both."""


def merged(base: Any, patch: Any, path: str = "patch") -> Any:
    """`base` with `patch` over it; ``None`` removes a field, and an item that is new is added.

    :raises SpecError: an item of a list lacks what tells it apart.
    """
    if not isinstance(base, Mapping) or not isinstance(patch, Mapping):
        return patch
    result = dict(base)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif key in _ADDED and isinstance(value, (list, tuple)):
            result[key] = [*(result.get(key) or ()), *value]
        elif key in _KEYS and isinstance(value, (list, tuple)):
            result[key] = _items(result.get(key) or [], value, key, f"{path}.{key}")
        else:
            result[key] = merged(result.get(key, {}), value, f"{path}.{key}")
    return result


def _items(base: Any, patch: Any, field: str, path: str) -> list[Any]:
    key = _KEYS[field]
    items = list(base)
    for number, item in enumerate(patch):
        if not isinstance(item, Mapping) or key not in item:
            raise SpecError(f"{path}: item {number} has no {key}, by which it is merged; give it.")
        place = next((i for i, one in enumerate(items) if one.get(key) == item[key]), None)
        if place is None and field == "workerGroupSpecs" and "template" not in item:
            known = ", ".join(repr(one.get(key)) for one in items) or "none"
            raise SpecError(
                f"{path}[{number}]: {key}: {item[key]!r} is not a group, as {known} are; "
                "correct it, or give a template."
            )
        if place is None:
            items.append(merged({}, item, path))
        else:
            items[place] = dict(item) if field in _WHOLE else merged(items[place], item, path)
    return items
