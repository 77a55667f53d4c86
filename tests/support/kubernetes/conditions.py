# SPDX-License-Identifier: Apache-2.0
"""Conditions in the status of objects, for the stand-in for a Kubernetes."""

from __future__ import annotations

from tests.support.kubernetes.kinds import CUSTOM, Manifest


def condition(manifest: Manifest, type_: str) -> Manifest | None:
    """The condition of a type, ``None`` if there is none."""
    found = (each for each in manifest.get("status", {}).get("conditions", ()) if each["type"] == type_)
    return next(found, None)


def holds(manifest: Manifest, type_: str) -> bool:
    """Whether a condition is there and true."""
    return (condition(manifest, type_) or {}).get("status") == "True"


def set_condition(
    manifest: Manifest, type_: str, status: bool, reason: str = "", message: str = "", *, now: str
) -> None:
    """Set a condition; its time of transition changes with its status only."""
    conditions = manifest.setdefault("status", {}).setdefault("conditions", [])
    before = condition(manifest, type_)
    text = "True" if status else "False"
    since = before["lastTransitionTime"] if before and before["status"] == text else now
    made = {"type": type_, "status": text, "lastTransitionTime": since}
    is_custom = manifest["kind"] in CUSTOM  # their schemas require both
    made |= {"reason": reason} if reason or is_custom else {}
    made |= {"message": message} if message or is_custom else {}
    if before is None:
        conditions.append(made)
    else:
        conditions[conditions.index(before)] = made


def drop_condition(manifest: Manifest, type_: str) -> None:
    conditions = manifest.get("status", {}).get("conditions", [])
    conditions[:] = [each for each in conditions if each["type"] != type_]
