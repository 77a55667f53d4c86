# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of the stand-in for a Kubernetes: what an owner leaves behind goes after it."""

from __future__ import annotations

from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.store import FOREGROUND, Store, copied, key_of


def collect(store: Store) -> bool:
    """Walk over all objects once; whether anything has changed."""
    with store.changed:
        before = store.version
        for found in store.peek():
            metadata = found["metadata"]
            if metadata.get("ownerReferences") or metadata.get("deletionTimestamp"):
                _judge(store, found)
        return store.version != before


def collect_all(store: Store) -> None:
    """Collect until nothing changes any more."""
    while collect(store):
        pass


def _judge(store: Store, found: Manifest) -> None:
    metadata = found["metadata"]
    if store.with_uid(metadata["uid"]) is None:  # gone since the walk began
        return
    finalizers = metadata.get("finalizers", ())
    if metadata.get("deletionTimestamp"):
        if FOREGROUND in finalizers and not _blocking(store, found):
            _release(store, found)
        return
    owners = metadata.get("ownerReferences") or []
    living = [store.with_uid(owner["uid"]) for owner in owners]
    if not owners or any(owner is not None and not _waits(owner) for owner in living):
        return
    waited_for = any(owner is not None for owner in living)
    how = "Foreground" if waited_for and _dependents(store, found) else "Background"
    store.delete(key_of(found), uid=metadata["uid"], propagation=how)


def _waits(owner: Manifest) -> bool:
    """Whether it goes as soon as what it owns is gone."""
    metadata = owner["metadata"]
    return bool(metadata.get("deletionTimestamp")) and FOREGROUND in metadata.get("finalizers", ())


def _dependents(store: Store, owner: Manifest) -> list[Manifest]:
    uid = owner["metadata"]["uid"]
    return [
        found
        for found in store.peek()
        if any(ref["uid"] == uid for ref in found["metadata"].get("ownerReferences") or ())
    ]


def _blocking(store: Store, owner: Manifest) -> list[Manifest]:
    uid = owner["metadata"]["uid"]
    return [
        found
        for found in _dependents(store, owner)
        if any(
            ref["uid"] == uid and ref.get("blockOwnerDeletion")
            for ref in found["metadata"]["ownerReferences"]
        )
    ]


def _release(store: Store, found: Manifest) -> None:
    changed = copied(found)
    metadata = changed["metadata"]
    metadata["finalizers"] = [each for each in metadata["finalizers"] if each != FOREGROUND]
    store.replace(changed)
