# SPDX-License-Identifier: Apache-2.0
"""`RayJobStatusTrigger`: waits for the job of a cluster of its own, and never changes either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import all_storable, clean, plain_reason

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome

_SILENT_POLLS = 60


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
        return "airflow_provider_raybatch.triggers.rayjob_status.RayJobStatusTrigger", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with the outcome as plain data (:meth:`Outcome.from_json` reads it)."""
        from airflow_provider_raybatch.cluster.follow.outcome import Outcome

        try:
            outcome = await self._wait()
        except Exception as error:
            # Airflow would store the traceback as it is.
            message = clean(f"The trigger that waited for the job failed ({plain_reason(error)}).")
            outcome = Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, message)
        yield TriggerEvent(all_storable({"outcome": outcome.to_json()}))  # type: ignore[no-untyped-call]

    async def _wait(self) -> Outcome:
        from airflow_provider_raybatch.places.kubernetes import akubernetes_of
        from airflow_provider_raybatch.places.own_cluster import made_by, outcome_of

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
