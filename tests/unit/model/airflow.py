# SPDX-License-Identifier: Apache-2.0
"""Airflow's part: the tries and processes of a task, and how they end."""

from __future__ import annotations

import copy
import json
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.airflow_tasks import OutletEvents

from .jobs_api import Driver
from .process import Gone, Process, Wrong
from .steps import Steps

HEARTBEAT_TIMEOUT, TRIGGERER_TIMEOUT, RETRY_DELAY = 300.0, 30.0, 30.0
TASK = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}


class Airflow(Steps):
    """Runs the operator and its trigger; checks each start of a job, each stop, and each result."""

    def play(self) -> None:
        """Play until the task has ended."""
        while self.state not in {"success", "failed"}:
            if self.state == "up_for_retry":
                self.clock.now += RETRY_DELAY
                self.try_number += 1
                self.resume = None
                self.state = "queued"
            self.process = self.current = Process()
            self._run(self.current)
        self.process = self.current = None

    def _run(self, process: Process) -> None:
        run = self._follow if self.state == "deferred" else self._work
        if not self.may_freeze:
            return run(process)

        def catch() -> None:
            try:
                run(process)
            except BaseException as error:
                process.error = error
            finally:
                process.paused.set()

        process.thread = threading.Thread(target=catch)
        process.thread.start()
        return self._wait(process)

    def _wait(self, process: Process) -> None:
        process.paused.wait()
        process.paused.clear()
        if process.error is not None:
            raise process.error

    def _work(self, process: Process) -> None:
        self.state = "running"
        operator = process.operator = _fresh(self.operator)
        context = self._context()
        try:
            if self.resume is None:
                result = operator.execute(context)
            else:
                result = operator.resume_execution(*self.resume, context)
            self.step("set XCom")
            self._resume_with(process, "success", result=result)
        except TaskDeferred as deferred:
            arguments = json.loads(json.dumps(deferred.trigger.serialize()[1]))
            self._end_of(process, "deferred", trigger=arguments)
        except RayBatchException as error:
            if not str(error) or "Traceback" in str(error):
                raise Wrong("a failure without a message") from error
            self.log_lines.append(f"   {type(error).__name__}: {error}")
            again = self.try_number <= self.max_tries and not isinstance(error, RayBatchFailException)
            self._end_of(process, "up_for_retry" if again else "failed")
        except Gone:
            self._lost(process)

    def _end_of(self, process: Process, state: str, **more: Any) -> None:
        try:
            self._resume_with(process, state, **more)
        except Gone:
            self._lost(process)

    def _resume_with(self, process: Process, state: str, **more: Any) -> None:
        self.step(f"tell {state}")
        if not self.is_heard:
            return  # Airflow has given up the task, or a user has ended it
        self.state = state
        for name, value in more.items():
            setattr(self, name, value)
        if state == "success":
            self._judge_result()

    def _lost(self, process: Process) -> None:
        if self.current is process:
            self.clock.now += HEARTBEAT_TIMEOUT
            self.state = "up_for_retry" if self.try_number <= self.max_tries else "failed"

    def _follow(self, process: Process) -> None:
        trigger = process.trigger = RayJobTrigger(**self.trigger)
        trigger._log = self  # type: ignore[assignment]
        trigger.task_instance = SimpleNamespace(**TASK)  # type: ignore[assignment]

        async def event() -> Any:
            return await anext(trigger.run())

        try:
            fired = self.loops.run(event()).payload
            self._resume_with(
                process, "queued", resume=("execute_complete", {"event": json.loads(json.dumps(fired))})
            )
        except Gone:
            if self.current is process:
                self.clock.now += TRIGGERER_TIMEOUT  # another triggerer takes over

    def _context(self) -> Any:
        ti = SimpleNamespace(
            **TASK,
            try_number=self.try_number,
            max_tries=self.max_tries,
            start_date=datetime.fromtimestamp(self.clock.now, UTC),
            xcom_push=lambda key, value: self.step("set XCom of the link"),
        )
        return {"ti": ti, "task_state_store": self.store, "outlet_events": OutletEvents()}

    def states(self, **asked: Any) -> dict[str, Any]:
        if self.silent or self.step("task state") is not None:
            raise ConnectionError("the API server is away")
        return {"r": {"t": "restarting" if self.restarting else self.state}}

    def tokens(self) -> set[str]:
        record = self.record
        return {driver.token for driver in self.ray.drivers} | ({record.token} if record else set())

    # What must hold at every instant.

    def check(self) -> None:
        drivers = self.ray.drivers
        for index in range(self.judged, len(drivers)):
            self._judge_start(drivers[index], drivers[:index])
        self.judged = len(drivers)
        for driver in self.ray.stops[self.stops :]:
            self._judge_stop(driver)
        self.stops = len(self.ray.stops)

    def _judge_start(self, driver: Driver, earlier: list[Driver]) -> None:
        record = self.record
        for one in earlier:
            if one.known and one.token == driver.token and (one.active or one.committed):
                raise Wrong(f"{driver.name} was submitted though {one.name} {one.status}")
        if not self.is_heard and self.frozen_at.startswith("POST"):
            # It had read the store before the clear. The destination's fence or the lease ends a cleared
            # run's job.
            self.straggling.add(driver.name)
        elif record is None or driver.token != record.token:
            raise Wrong(f"{driver.name} is not of the run on record")

    def _judge_stop(self, driver: Driver) -> None:
        record = self.record
        if self.process is self.evicted or driver.name in self.stopped_by_user:
            return
        if record is not None and driver.token != record.token:
            return
        raise Wrong(f"{driver.name} was stopped, and no user wanted that")

    def _judge_result(self) -> None:
        token = str(self.result["uri"]).rpartition("/")[2]
        if token in self.old_tokens:
            raise Wrong("the result of an older run was handed over")
        if token not in self.ray.commits:
            raise Wrong("what was handed over was never committed")


def _fresh(operator: RayBatchInferenceOperator) -> RayBatchInferenceOperator:
    """Copy an operator and its own state, which is cheaper than a new one."""
    fresh = copy.copy(operator)
    for name, value in vars(operator).items():
        if type(value).__module__.startswith("airflow_provider_raybatch."):
            fresh.__dict__[name] = copy.copy(value)
    return fresh
