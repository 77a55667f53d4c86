# SPDX-License-Identifier: Apache-2.0
"""Whether something on the cluster waits for resources that a kept engine holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def waits_for(resource: str) -> bool:
    """Whether an actor, a task or a placement group of any job waits for this resource.

    Ray has no public call for it; its autoscaler asks the same. `False` where Ray does not tell.
    """
    try:
        from ray._private.worker import global_worker
        from ray.autoscaler.v2.sdk import get_cluster_resource_state

        state = get_cluster_resource_state(global_worker.gcs_client)
        return any(one.get(resource, 0) > 0 for one in _bundles(state))
    except Exception:  # of Ray's private API; the engine then ends at its time
        return False


def _bundles(state: Any) -> Iterator[dict[str, float]]:
    for pending in state.pending_resource_requests:
        yield dict(pending.request.resources_bundle)
    for group in state.pending_gang_resource_requests:
        for request in group.requests:
            yield dict(request.resources_bundle)
