# SPDX-License-Identifier: Apache-2.0
"""Patches of Kubernetes, for its stand-in: merge patch (RFC 7386) and JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.kubernetes.refusals import RefusedError, bad_request


def merged(target: Any, change: Any) -> Any:
    """What a merge patch makes of a value: ``None`` takes a field away, lists are replaced."""
    if not isinstance(change, Mapping):
        return copy.deepcopy(change)
    found = dict(target) if isinstance(target, Mapping) else {}
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def json_patched(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """What a JSON patch of add, replace, remove and test makes of a value."""
    found = copy.deepcopy(target)
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        try:
            holder = found
            for step in way:
                holder = holder[int(step)] if isinstance(holder, list) else holder[step]
            _apply(holder, last, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _unfit(f"the JSON patch does not fit: {operation['path']}") from error
    return found


def _apply(holder: Any, last: str, operation: Mapping[str, Any]) -> None:
    is_list = isinstance(holder, list)
    key: Any = (len(holder) if last == "-" else int(last)) if is_list else last
    match operation["op"]:
        case "add" if is_list:
            holder.insert(key, operation["value"])
        case "add":
            holder[key] = operation["value"]
        case (
            "replace"
        ):  # Kubernetes' library also replaces a field that is not there; Ray's autoscaler needs it
            holder[key] = operation["value"]
        case "remove":
            del holder[key]
        case "test":
            if holder[key] != operation["value"]:
                raise _unfit(f"testing value {operation['path']} failed")
        case other:
            raise bad_request(f"unsupported JSON patch operation {other}")


def _unfit(message: str) -> RefusedError:
    return RefusedError(422, "Invalid", message)
