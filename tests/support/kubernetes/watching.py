# SPDX-License-Identifier: Apache-2.0
"""Watches of the stand-in for a Kubernetes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.support.kubernetes.access import User
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.paths import Target
from tests.support.kubernetes.refusals import RefusedError
from tests.support.kubernetes.selectors import by_fields, by_labels
from tests.support.kubernetes.server import ApiServer

_MOST_SECONDS = 300


def watched(
    api: ApiServer, user: User, target: Target, query: dict[str, str], ended: threading.Event
) -> Iterator[Manifest | None]:
    """Events of a watch, after one ``None`` that says that it is allowed.

    Without a resource version it begins with what there is, each as ADDED. A version that is no longer kept
    is an ERROR of 410. An object that no longer fits the selectors is DELETED, as Kubernetes does it.
    """
    resource, namespace = target.resource, target.namespace
    selection = {"labels": query.get("labelSelector", ""), "fields": query.get("fieldSelector", "")}
    there = api.watch(user, resource.kind, namespace, **selection)
    yield None
    fits_labels, fits_fields = by_labels(selection["labels"]), by_fields(selection["fields"], resource)
    version, shown = int(query.get("resourceVersion") or 0), set()
    if not version:
        version = int(there["metadata"]["resourceVersion"])
        for found in there["items"]:
            shown.add(found["metadata"]["uid"])
            yield {"type": "ADDED", "object": found}
    until = time.monotonic() + float(query.get("timeoutSeconds") or _MOST_SECONDS)
    while not ended.is_set() and time.monotonic() < until:
        try:
            changes = api.store.changes_since(version)
        except RefusedError as refusal:
            yield {"type": "ERROR", "object": refusal.body()}
            return
        for change in changes:
            version, found = change.version, change.found
            if found.get("kind") != resource.kind:
                continue
            if namespace and found["metadata"].get("namespace") != namespace:
                continue
            fits = fits_labels(found) and fits_fields(found)
            if (event := _event(change.type, found, fits, shown)) is not None:
                yield event
        with api.store.changed:
            if api.store.version == version and not ended.is_set():
                api.store.changed.wait(min(0.5, max(0.0, until - time.monotonic())))
            elif not changes:
                version = api.store.version


def _event(how: str, found: Manifest, fits: bool, shown: set[Any]) -> Manifest | None:
    uid = found["metadata"]["uid"]
    if how == "DELETED" or not fits:
        was_shown = uid in shown or (how == "DELETED" and fits)
        shown.discard(uid)
        return {"type": "DELETED", "object": found} if was_shown else None
    how = "MODIFIED" if uid in shown or how == "MODIFIED" else "ADDED"
    shown.add(uid)
    return {"type": how, "object": found}
