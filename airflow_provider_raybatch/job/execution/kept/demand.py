# SPDX-License-Identifier: Apache-2.0
"""Whether something on the cluster waits for resources that a kept engine holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any


def waits_for(resources: Collection[str]) -> bool:
    """Whether an actor, a task or a placement group of any job waits for one of these resources.

    Ray has no public call for it; its autoscaler asks the same. `False` where Ray does not tell.
    """
    if not resources:
        return False
    try:
        from ray._private.worker import global_worker
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        state = get_cluster_resource_state(global_worker.gcs_client)
        return any(bundle.get(name, 0) > 0 for bundle in _bundles(state) for name in resources)
    except Exception:  # of Ray's private API; the engine then ends at its time
        return False


def _bundles(state: Any) -> Iterator[dict[str, float]]:
    for pending in state.pending_resource_requests:
        yield dict(pending.request.resources_bundle)
    for group in state.pending_gang_resource_requests:
        for request in group.requests:
            yield dict(request.resources_bundle)
