# SPDX-License-Identifier: Apache-2.0
"""`RayClusterTrigger`: waits for a cluster that is made for a job, while the job's task is deferred."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk.log import amask_secret
from airflow.triggers.base import TriggerEvent

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import all_storable, clean, plain_reason
from airflow_provider_raybatch.places.choosing import acluster_of
from airflow_provider_raybatch.triggers.killable import KillableTrigger


class RayClusterTrigger(KillableTrigger):
    """Shows in the task's log what a cluster waits for, and fires once, when it is ready or can't become so.

    The task then submits its job: what travels with that is on the worker.

    :param ray_cluster: where the cluster is, with the secrets to reach it. Airflow encrypts a trigger's
        arguments in its database and leaves them out of its API.
    :param submission_id: of the job that the cluster is made for.
    :param cluster_wait: seconds from the RayJob's creation, or its admission by Kueue.
    :param queue_wait: seconds from its creation until then; ``None`` for ever.
    :param cancel_on_kill: delete the cluster when a user marks or clears the deferred task; default yes.
    :param handle: plain data that the operator gets back with the event.
    """

    def __init__(
        self,
        *,
        ray_cluster: Mapping[str, Any],
        submission_id: str,
        cluster_wait: float,
        queue_wait: float | None = None,
        cancel_on_kill: bool = True,
        handle: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ray_cluster = dict(ray_cluster)
        self.submission_id = submission_id
        self.cluster_wait, self.queue_wait = cluster_wait, queue_wait
        self.cancel_on_kill = cancel_on_kill
        self.handle = dict(handle or {})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with `failed` as plain data if the cluster can't become ready."""
        failed = await self._wait()
        yield TriggerEvent(all_storable({"failed": failed, "handle": self.handle}))  # type: ignore[no-untyped-call]

    async def _wait(self) -> dict[str, str] | None:
        try:
            await self._wait_until_ready()
        except RaybatchError as error:
            return {"failure_class": error.failure_class.value, "message": clean(str(error))}
        except Exception as error:
            # Airflow would store the traceback as it is.
            self.log.error("%s", clean(traceback.format_exc()))
            message = f"The trigger that waited for the cluster failed ({plain_reason(error)})."
            return {"failure_class": FailureClass.INTERNAL.value, "message": clean(message)}
        return None

    async def _wait_until_ready(self) -> None:
        from airflow_provider_raybatch.places.own_cluster import OwnCluster, wait_until_ready

        cluster = await acluster_of("", self.ray_cluster, self.submission_id)
        assert isinstance(cluster, OwnCluster)
        for secret in cluster.secrets:
            await amask_secret(secret)
        async with cluster.kubernetes.api() as api:
            await wait_until_ready(api, cluster, self.cluster_wait, self.log, self.queue_wait or None)

    @property
    def followed(self) -> str:
        """See :class:`KillableTrigger`."""
        return f"RayJob {self.ray_cluster['claim']['name']}"

    async def stop_followed(self, seconds: float) -> None:
        """See :class:`KillableTrigger`."""
        cluster = await acluster_of("", self.ray_cluster, self.submission_id)
        await cluster.stop(self.submission_id, self.log, timeout=seconds)

    async def leave_in_doubt(self) -> None:
        """See :class:`KillableTrigger`."""
        self.log.warning(
            "Airflow did not say whether a user ended the task, so %s goes on; KubeRay ends it unless a task "
            "submits its job.",
            self.followed,
        )
