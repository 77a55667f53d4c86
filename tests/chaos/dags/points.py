# SPDX-License-Identifier: Apache-2.0
"""Batch inferences whose processes are struck at exact points, which come with the run."""

from __future__ import annotations

import dataclasses
from typing import Any

import one_task
from aimed_strike import strike
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time import task_runner

from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator

_STOP_TIMEOUT = 8.0
"""Seconds after which a run gives up to stop an older one's job that is frozen; 120 by default."""
_SENT = {"DeferTask": "deferred", "SucceedTask": "succeeded"}


class Aimed(RayBatchInferenceOperator):
    """Strikes its own process at points between the run token and the task's success."""

    _aims: dict[str, Any]

    def execute(self, context: Any) -> Any:
        self._aim(context)
        result = super().execute(context)
        self._strike("recorded")
        return result

    def execute_complete(self, context: Any, event: Any) -> Any:
        self._aim(context)
        self._strike("resumed")
        result = super().execute_complete(context, event)
        self._strike("recorded")
        return result

    def plan(self, run: Any) -> Any:
        plan = super().plan(run)
        self._strike("token_stored")

        async def build(client: Any, submission_id: str) -> Any:
            request, submit = await plan.build(client, submission_id), client.submit

            async def posting(request: Any) -> None:
                self._strike("not_posted")
                await submit(request)
                self._strike("posted")

            client.submit = posting
            return request

        return dataclasses.replace(plan, build=build)

    def defer(self, *, trigger: Any, **options: Any) -> Any:
        from aimed_trigger import AimedTrigger

        self._strike("before_defer")
        try:
            super().defer(trigger=AimedTrigger(**trigger.serialize()[1], aims=self._aims), **options)
        except TaskDeferred:
            self._strike("inside_defer")
            raise

    def hand_over(self, outcome: Any, handle: Any) -> dict[str, Any]:
        result = super().hand_over(outcome, handle)
        self._strike("handed_over")
        return result

    def post_execute(self, context: Any, result: Any = None) -> None:
        super().post_execute(context, result)
        self._strike("post_execute")

    def _strike(self, point: str) -> None:
        strike(self._aims, point)

    def _aim(self, context: Any) -> None:
        from airflow_provider_raybatch.cluster.submit import resolve as submission

        self._aims = dict(context["params"]["aims"])
        submission.stop_run.__defaults__ = (_STOP_TIMEOUT,)
        supervisor = type(task_runner.SUPERVISOR_COMMS)  # the object has slots, so its class is changed
        send = supervisor.send

        def sent(comms: Any, msg: Any) -> Any:
            answer = send(comms, msg)
            point = _SENT.get(type(msg).__name__)
            if type(msg).__name__ == "SetXCom" and msg.key == "return_value":
                point = "xcom_set"
            if point is not None:
                self._strike(point)
            return answer

        supervisor.send = sent  # type: ignore[method-assign,assignment]


def add(dag_id: str, deferrable: bool) -> None:
    """Add a DAG of one task."""
    with one_task.dag_of_runs(dag_id, at_once=64, retry_seconds=1, aims={}) as dag:
        Aimed(**one_task.arguments(deferrable, retries=20))
    globals()[dag_id] = dag


add("points_blocking", False)
add("points_deferrable", True)
