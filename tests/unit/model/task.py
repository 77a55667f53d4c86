# SPDX-License-Identifier: Apache-2.0
"""One task in a small model of Airflow: real operator and trigger, whose calls to the outside are steps."""

from __future__ import annotations

import copy
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
from airflow.sdk.bases.operator import ExecutorSafeguard
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.cluster.jobs_api import blocking
from airflow_provider_raybatch.cluster.jobs_api import client as jobs
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest
from airflow_provider_raybatch.cluster.jobs_api.transport import Transport
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.hooks.connection import RayConnection
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.operators import ray_batch
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.run_record import KEY, RunRecord
from airflow_provider_raybatch.triggers import ray_job
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.airflow_tasks import OutletEvents, Store

from .clock import Clock, Loops
from .jobs_api import CLAIM, PENDING, Driver, Ray

RETRIES = 5
MOST_STEPS = 3000
HEARTBEAT_TIMEOUT, TRIGGERER_TIMEOUT, RETRY_DELAY, KILL_GRACE = 300.0, 30.0, 30.0, 5.0
TASK = {"dag_id": "d", "task_id": "t", "run_id": "r", "map_index": -1}
CONNECTION = RayConnection("ray_default", "http://ray:8265/", namespace="n")

Hook = Callable[[str], str | None]


class Gone(BaseException):
    """The process is no more."""


class Wrong(BaseException):
    """An invariant doesn't hold; no code under test may catch it."""


@dataclass
class Process:
    """A worker's or a triggerer's process for one task.

    :param dies_at: when Airflow kills it, after a SIGTERM.
    """

    operator: RayBatchInferenceOperator | None = None
    trigger: RayJobTrigger | None = None
    dies_at: float = float("inf")
    gone: bool = False
    thread: threading.Thread | None = None
    paused: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


@dataclass
class _Answer:
    status_code: int
    text: str

    @property
    def is_success(self) -> bool:
        return self.status_code < 400

    def json(self) -> Any:
        return json.loads(self.text)


class _Operator(RayBatchInferenceOperator):
    """The real one; what travels with its job is one small package."""

    log = None  # the world's

    def plan(self, run: TaskRun) -> JobPlan:
        async def build(client: Any, submission_id: str) -> JobRequest:
            await client.upload_package(f"gcs://{submission_id}.zip", b"")
            key = {"key": run.key_of_job(submission_id)}
            return JobRequest("python -m job", submission_id, key)

        return replace(super().plan(run), build=build)


class _Store(Store):
    """Airflow gives a task a new id with each try, and knows the old one no more: reads find nothing."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def get(self, key: str, default: Any = None) -> Any:
        if self.world.step("store get") is not None:
            raise ConnectionError("the API server is away")
        return super().get(key, default) if self.world.is_heard else default

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        told = self.world.step("store set")
        if not self.world.is_heard:
            raise LookupError("task instance not found")
        if told != "refused":
            super().set(key, value, retention=retention)
        if told is not None:
            raise ConnectionError("the API server is away")


class World:
    """Airflow, a cluster, and one task that runs a batch inference there.

    :param forgetful: whether a clear drops the task's state, as Airflow 3.4 does.
    """

    def __init__(self, deferrable: bool, *, forgetful: bool = False, **cluster: Any) -> None:
        self.clock = Clock()
        self.loops = Loops(self.clock)
        self.ray = Ray(self.clock, **cluster)
        self.store = _Store(self)
        self.forgetful = forgetful
        self.operator = copy.copy(_OPERATORS[deferrable])
        self.state = "queued"
        self.try_number, self.max_tries = 1, RETRIES
        self.resume: tuple[str, dict[str, Any]] | None = None
        self.trigger: dict[str, Any] = {}
        self.current: Process | None = None
        self.process: Process | None = None
        self.before: Hook = lambda call: None
        self.steps = 0
        self.requests = 0
        self.result: Any = None
        self.old_tokens: set[str] = set()
        self.stopped_by_user: set[str] = set()
        self.judged = 0
        self.stops = 0
        self.store_was_away = False
        self.may_fail = False
        self.was_told = False
        self.straggling: set[str] = set()
        self.may_freeze = False
        self.zombie: Process | None = None
        self.call = self.frozen_at = ""
        self.said: list[str] = []
        self.operator.log = self  # type: ignore[assignment]

    # The log of the task.

    def info(self, text: str, *values: object) -> None:
        self.said.append(text % values)

    warning = error = info

    # Steps.

    def step(self, call: str) -> str | None:
        """Something goes out of the present process."""
        process = self.process
        assert process is not None
        self._alive(process)
        self.clock.now += 0.02
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Wrong(f"no end: {call}")
        self.ray.advance()
        self.said.append(f"{self.steps} {self.clock.now - 1.7e9:.2f} {call}")
        self.call = call
        told = self.before(call)
        self.store_was_away |= told is not None and call.startswith("store")
        if told == "freeze":
            process.paused.set()
            process.goes_on.wait()
            told = None
        self.process = process
        self._alive(process)
        self.check()
        return told

    def _alive(self, process: Process) -> None:
        if process.gone or self.clock.now >= process.dies_at:
            process.gone = True
            raise Gone

    async def request(self, method: str, path: str, params: Any, body: Any) -> _Answer | None:
        told = self.step(f"{method} {path}")
        self.requests += 1
        if told == "refused":
            return None
        code, text = self.ray.answer(method, path, params or {}, body, late=told == "late")
        self.check()
        return None if told == "lost" else _Answer(code, text)

    # What Airflow does.

    def play(self) -> None:
        """Until the task has ended."""
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

    def freeze(self, cleared: bool = False) -> str:
        """The present process stops where it is, and Airflow gives it up, or a user clears its task."""
        process, self.zombie = self.process, self.process
        self.frozen_at = self.call
        assert process is not None
        if cleared:
            self.clear(told=False)
        elif process.operator is not None:
            self._lost(process)
        else:
            self.clock.now += TRIGGERER_TIMEOUT
        self.current = None
        return "freeze"

    def thaw(self, go_on: bool = True) -> None:
        """The frozen process goes on to its end, beside the present one."""
        zombie, self.zombie = self.zombie, None
        if zombie is None:
            return
        before, self.before = self.before, lambda call: None
        zombie.gone = not go_on
        zombie.goes_on.set()
        self._wait(zombie)
        self.before = before

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
            self._tell(process, "success", result=result)
        except TaskDeferred as deferred:
            arguments = json.loads(json.dumps(deferred.trigger.serialize()[1]))
            self._end_of(process, "deferred", trigger=arguments)
        except RayBatchException as error:
            if not str(error) or "Traceback" in str(error):
                raise Wrong("a failure without its sentence") from error
            self.said.append(f"   {type(error).__name__}: {error}")
            again = self.try_number <= self.max_tries and not isinstance(error, RayBatchFailException)
            self._end_of(process, "up_for_retry" if again else "failed")
        except Gone:
            self._lost(process)

    def _end_of(self, process: Process, state: str, **more: Any) -> None:
        try:
            self._tell(process, state, **more)
        except Gone:
            self._lost(process)

    def _tell(self, process: Process, state: str, **more: Any) -> None:
        self.step(f"tell {state}")
        if not self.is_heard:
            return  # Airflow has given the task up, or a user has ended it
        self.state = state
        for name, value in more.items():
            setattr(self, name, value)
        if state == "success":
            self._judge_result()

    @property
    def is_heard(self) -> bool:
        """Whether the present process is the one that works on the task, as Airflow sees it."""
        return self.process is self.current

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
            self._tell(
                process, "queued", resume=("execute_complete", {"event": json.loads(json.dumps(fired))})
            )
        except Gone:
            if self.current is process:
                self.clock.now += TRIGGERER_TIMEOUT  # another triggerer goes on

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
        self.step("task state")
        return {"r": {"t": self.state}}

    # What users, and the machines' owners, do.

    def kill(self) -> None:
        """SIGKILL, of the machine too."""
        assert self.process is not None
        self.process.gone = True

    def evict(self) -> None:
        """SIGTERM to a worker, and SIGKILL; a triggerer just goes."""
        process = self.process
        assert process is not None
        if process.operator is None:
            return self.kill()
        self.stopped_by_user.update(one.name for one in self.ray.drivers)
        return self._terminate(process)

    def clear(self, new_run: bool = True, told: bool = True) -> None:
        """A user clears the task.

        :param new_run: whether Airflow raises `max_tries`, which it does except in one case.
        :param told: whether the process hears of it.
        """
        if self.state in {"success", "failed"}:
            new_run = True
        if new_run:
            self.old_tokens |= self.tokens()
            self.max_tries = self.try_number + RETRIES
            if self.forgetful:
                self.store.values.clear()
            if (
                not self.may_freeze
            ):  # a thawed process would follow such a job before its successor can stop it
                self.ray.never_end()
        self.try_number += 1
        self.resume = None
        self._user_ends("queued", told)

    def mark_failed(self, told: bool = True) -> None:
        """A user marks the task."""
        self.may_fail = True
        self._user_ends("failed", told)

    def _user_ends(self, state: str, told: bool) -> None:
        self.stopped_by_user.update(one.name for one in self.ray.drivers)
        process, self.current, self.state = self.current, None, state
        if told and process is not None:
            self._terminate(process)

    def _terminate(self, process: Process) -> None:
        if process.operator is not None:
            process.dies_at = self.clock.now + KILL_GRACE
            process.operator.on_kill()
        elif process.trigger is not None:
            process.gone = True
            self.kill_trigger(process.trigger)

    def kill_trigger(self, trigger: RayJobTrigger) -> None:
        """What a triggerer does with a trigger that is not its own any more."""
        self.process = Process()
        self.loops.run(trigger.on_kill())

    # What must hold.

    def tokens(self) -> set[str]:
        record = self.record
        return {driver.token for driver in self.ray.drivers} | ({record.token} if record else set())

    @property
    def record(self) -> RunRecord | None:
        data = self.store.values.get(KEY)
        return None if data is None else RunRecord.from_json(data)

    def check(self) -> None:
        """What must hold at every instant."""
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
            # It had asked the store already. The destination's fence or the lease ends a cleared run's job.
            self.straggling.add(driver.name)
        elif record is None or driver.token != record.token:
            raise Wrong(f"{driver.name} is not of the run on record")

    def _judge_stop(self, driver: Driver) -> None:
        record = self.record
        if driver.name in self.stopped_by_user or (record is not None and driver.token != record.token):
            return
        raise Wrong(f"{driver.name} was stopped, and no user wanted that")

    def _judge_result(self) -> None:
        token = str(self.result["uri"]).rpartition("/")[2]
        if token in self.old_tokens:
            raise Wrong("the result of an older run was handed over")
        if token not in self.ray.commits:
            raise Wrong("what was handed over was never committed")

    def ends_well(self, clear: bool = True) -> None:
        """The task succeeds in the end; so does a retry of it, and a clear makes a dataset of its own.

        :param clear: whether that is tried, too.
        """
        self.play()
        if self.was_told and self.state == "failed" and any(one.active for one in self.ray.drivers):
            raise Wrong("a user ended the task, and its job goes on")
        for _ in range(4 * self.may_fail):
            if self.state == "failed":
                self.clock.now += 1000.0
                self.clear()
                self.play()
        self._check_end()
        self.before = lambda call: None
        self._check_retry_after_success()
        if clear:
            self.ray.down_until = self.ray.proxy_until = 0.0
            self.clear()
            self.play()
            self._check_end()

    def _check_end(self) -> None:
        if self.state != "success":
            raise Wrong("the task failed, and no user wanted that")
        self.clock.now += PENDING + CLAIM  # in which the fence ends what a straggler has submitted
        self.ray.advance()
        left = [
            driver.name for driver in self.ray.drivers if driver.known and driver.active and not driver.acted
        ]
        if left:
            raise Wrong(f"left behind: {left}")

    def _check_retry_after_success(self) -> None:
        returned, requests, drivers = self.result, self.requests, len(self.ray.drivers)
        recorded = self.record is not None and self.record.result == returned
        self.state, self.result = "up_for_retry", None
        self.play()
        if self.result != returned:
            raise Wrong("a retry after success returned something else")
        known = all(driver.known for driver in self.ray.drivers[:drivers])
        if (known and len(self.ray.drivers) > drivers) or (recorded and self.requests > requests):
            raise Wrong("a retry after success asked the cluster")
        if not recorded and not self.store_was_away:
            raise Wrong("the result is not on record")


@contextmanager
def modelled() -> Iterator[Callable[..., World]]:
    """Everything outside of operator, trigger and client is the model's; yields a maker of worlds."""
    world: list[World] = []

    class Wire(Transport):
        async def __aenter__(self) -> Wire:
            return self

        async def __aexit__(self, *args: object) -> None:
            pass

        async def _once(
            self, method: str, path: str, params: Any, json: Any, content: Any, tolerated: Any
        ) -> Any:
            answer = await world[-1].request(method, path, params, json)
            if answer is None:
                raise self._transport_error(httpx.ReadError("the connection broke"))
            if answer.is_success or answer.status_code in tolerated:
                return answer
            raise self.status_error(method, path, answer)  # type: ignore[arg-type]

    class Now:
        def __getattr__(self, name: str) -> Any:
            return getattr(world[-1].clock, name)

    async def connection(hook: object) -> RayConnection:
        return CONNECTION

    def threadless(call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return called

    def make(*args: Any, **kwargs: Any) -> World:
        random.seed(1)
        if world:
            world.pop().loops.close()
        world.append(World(*args, **kwargs))
        return world[-1]

    spec = ray_batch.build_spec({name: getattr(_OPERATORS[True], name) for name in ray_batch.ARGUMENTS})
    with ExitStack() as stack:
        for owner, name, stand_in in (
            (jobs, "Transport", Wire),
            (ray_job, "sync_to_async", threadless),
            (ray_batch, "build_spec", lambda arguments: spec),
            (RayHook, "read", lambda hook: CONNECTION),
            (RayHook, "aread", connection),
            (blocking, "run_blocking", lambda coroutine: world[-1].loops.run(coroutine)),
            (RuntimeTaskInstance, "get_task_states", lambda **asked: world[-1].states(**asked)),
            (ExecutorSafeguard, "test_mode", True),
        ):
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        stack.enter_context(_time_is(Now()))
        yield make
    if world:
        world.pop().loops.close()


@contextmanager
def _time_is(clock: object) -> Iterator[None]:
    """In all modules of the package, whichever they are."""
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith("airflow_provider_raybatch.") and getattr(module, "time", None) is time
    ]
    for module in modules:
        module.time = clock  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.time = time  # type: ignore[attr-defined]


def _fresh(operator: RayBatchInferenceOperator) -> RayBatchInferenceOperator:
    """A copy, with copies of what it keeps its own state in: cheaper than a new one."""
    fresh = copy.copy(operator)
    for name, value in vars(operator).items():
        if type(value).__module__.startswith("airflow_provider_raybatch."):
            fresh.__dict__[name] = copy.copy(value)
    return fresh


_OPERATORS: Mapping[bool, RayBatchInferenceOperator] = {
    deferrable: _Operator(
        task_id="t", source="/in", prompt="Say {row.x}", engine="echo", destination="s3://lake/out/",
        deferrable=deferrable, poll_interval=10,
    )
    for deferrable in (False, True)
}  # fmt: skip
