# SPDX-License-Identifier: Apache-2.0
"""Triggers that wait for clusters on Kubernetes, and for the job of a cluster of its own."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk.log import amask_secret
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import all_storable, clean, plain_reason
from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters.run_cluster import (
    RunCluster,
    made_by,
    outcome_of,
    run_cluster_of,
    wait_until_ready,
)
from airflow_provider_raybatch.kubernetes.connection import akubernetes_of
from airflow_provider_raybatch.triggers.killable import KillableTrigger

_SILENT_POLLS = 60


class RayClusterTrigger(KillableTrigger):
    """Shows in the task's log what a cluster waits for, and fires once, when it is ready or can't become so.

    The task then submits its job: what travels with that is on the worker.

    :param ray_cluster: where the cluster is, with the secrets to reach it. Airflow encrypts a trigger's
        arguments in its database and leaves them out of its API.
    :param submission_id: of the job that the cluster is made for.
    :param cluster_wait: seconds from the RayJob's creation.
    :param cancel_on_kill: delete the cluster when a user marks or clears the deferred task; default yes.
    :param handle: plain data that the operator gets back with the event.
    """

    def __init__(
        self,
        *,
        ray_cluster: Mapping[str, Any],
        submission_id: str,
        cluster_wait: float,
        cancel_on_kill: bool = True,
        handle: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ray_cluster = dict(ray_cluster)
        self.submission_id = submission_id
        self.cluster_wait, self.cancel_on_kill = cluster_wait, cancel_on_kill
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
        cluster = await self._cluster()
        for secret in cluster.secrets:
            await amask_secret(secret)
        async with cluster.kubernetes.api() as api:
            await wait_until_ready(api, cluster, self.cluster_wait, self.log)

    async def _cluster(self) -> RunCluster:
        kubernetes = await akubernetes_of(KubeRayCluster.from_json(self.ray_cluster))
        return await run_cluster_of(kubernetes, self.ray_cluster, self.submission_id)

    @property
    def followed(self) -> str:
        """See :class:`KillableTrigger`."""
        return f"RayJob {self.ray_cluster['claim']['name']}"

    async def stop_followed(self, seconds: float) -> None:
        """See :class:`KillableTrigger`."""
        cluster = await self._cluster()
        await cluster.stop(self.submission_id, self.log, timeout=seconds)

    async def leave_in_doubt(self) -> None:
        """See :class:`KillableTrigger`."""
        told = (
            "Airflow did not say whether a user ended the task; KubeRay ends %s unless a task submits a job."
        )
        self.log.warning(told, self.followed)


class RayJobStatusTrigger(BaseTrigger):
    """Asks Kubernetes for a RayJob until its job has ended, and fires once.

    :param ray_cluster: the value of that name in what the ``RayJobOperator`` returned.
    :param poll_interval: seconds between two polls.
    """

    def __init__(self, *, ray_cluster: Mapping[str, Any], poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ray_cluster = dict(ray_cluster)
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See Airflow's ``BaseTrigger``."""
        arguments = {"ray_cluster": self.ray_cluster, "poll_interval": self.poll_interval}
        return f"{__name__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with the outcome as plain data (:meth:`Outcome.from_json` reads it)."""
        try:
            outcome = await self._wait()
        except Exception as error:
            # Airflow would store the traceback as it is.
            message = clean(f"The trigger that waited for the job failed ({plain_reason(error)}).")
            outcome = Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, message)
        yield TriggerEvent(all_storable({"outcome": outcome.to_json()}))  # type: ignore[no-untyped-call]

    async def _wait(self) -> Outcome:
        definition, claim = made_by(self.ray_cluster)
        silent = 0
        while True:
            try:
                outcome = await outcome_of(await akubernetes_of(definition), claim)
                silent = 0
            except RaybatchError as error:
                silent += 1
                if silent >= _SILENT_POLLS:
                    raise
                self.log.warning("%s Asking again later.", error)
                outcome = None
            if outcome is not None:
                return outcome
            await asyncio.sleep(self.poll_interval)
