# SPDX-License-Identifier: Apache-2.0
"""Events of the stand-in for a Kubernetes, as components write them."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.store import Store, copied, suffix

_NEW_API = {"default-scheduler", "rayjob-controller", "raycluster-controller"}
"""Components that write through `events.k8s.io`: read through `v1`, their events have only `eventTime`."""


def record(
    store: Store, about: Manifest, reason: str, message: str, *, source: str, warning: bool = False
) -> None:
    """Write an event about an object, or count it once more."""
    metadata = about["metadata"]
    involved = {
        "apiVersion": about["apiVersion"],
        "kind": about["kind"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    said = {"reason": reason, "message": message, "type": "Warning" if warning else "Normal"}
    now = store.clock.timestamp()
    with store.changed:
        for event in store.peek("Event", metadata["namespace"]):
            if event["involvedObject"] == involved and said.items() <= event.items():
                if "eventTime" not in event:
                    again = {"count": event["count"] + 1, "lastTimestamp": now}
                    store.replace({**copied(event), **again})
                return
        times: Manifest = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
        if source in _NEW_API:
            moment = datetime.fromtimestamp(store.clock.now(), UTC)
            times = {"eventTime": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "reportingComponent": source}
        name = f"{metadata['name']}.{suffix()}{suffix()}"
        head = {"name": name, "namespace": metadata["namespace"]}
        body = {**said, **times, "involvedObject": involved, "source": {"component": source}}
        store.create({"apiVersion": "v1", "kind": "Event", "metadata": head, **body})
