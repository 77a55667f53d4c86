# SPDX-License-Identifier: Apache-2.0
"""The trigger never blocks its loop, tolerates outages, keeps its deadline, and stops only its own job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.contract.events import Committed, line
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import order_package, read_order
from airflow_provider_raybatch.exceptions import RayBatchUnavailableException
from airflow_provider_raybatch.triggers import killable, ray_job
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.airflow_tasks import Clock, Run, connection
from tests.support.batches import batch, defer
from tests.support.fake_ray import FakeRay, Script, lasting, summary

TERMS = LeaseTerms(key="ab" * 32, attempt=1)
JOB = "raybatch-0123-0"


def submit(ray: FakeRay, script: Script) -> None:
    ray.script = lambda ray, body: script
    ray.submit(submission_id=JOB)


def trigger(ray: FakeRay, **arguments: Any) -> RayJobTrigger:
    defaults: dict[str, Any] = {
        "ray_conn_id": "ray_default", "submission_id": JOB, "session_name": ray.session_name,
        "poll_interval": 0.05,
    }  # fmt: skip
    return RayJobTrigger(**{**defaults, **arguments})


async def fired(following: RayJobTrigger) -> Outcome:
    events = [event async for event in following.run()]
    assert len(events) == 1
    payload = json.loads(json.dumps(events[0].payload))
    return Outcome.from_json(payload["outcome"])


def test_survives_serialisation(ray: FakeRay) -> None:
    before = trigger(ray, deadline=5.0, cancel_on_kill=False, deferred_at=1.0, handle={"a": 1})
    path, arguments = before.serialize()
    assert path == f"{RayJobTrigger.__module__}.{RayJobTrigger.__qualname__}"
    after = RayJobTrigger(**json.loads(json.dumps(arguments)))
    assert after.serialize() == before.serialize()


def test_a_subclass_adds_its_own_arguments(ray: FakeRay) -> None:
    class Aimed(RayJobTrigger):
        def __init__(self, *, aims: int, **options: Any) -> None:
            super().__init__(**options)
            self.aims = aims

    _, arguments = trigger(ray).serialize()
    assert Aimed(aims=3, **arguments).serialize()[1] == {**arguments, "aims": 3}


async def test_never_blocks_the_loop(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ray.answer

    beats, beats_of_answers = 0, []

    def slowly(*arguments: Any) -> Any:
        before, given_up = beats, time.monotonic() + 60
        while beats < before + 3 and time.monotonic() < given_up:
            time.sleep(0.005)
        beats_of_answers.append(beats - before)
        return answer(*arguments)

    submit(ray, Script(["x"] * 200, seconds=600))
    ray.at_poll(3, ray.end_jobs)
    monkeypatch.setattr(ray, "answer", slowly)
    await trigger(ray)._find_cluster()  # imports are done once, before the heart beats
    beats_of_answers.clear()
    stop = asyncio.Event()

    async def heartbeat() -> None:
        nonlocal beats
        while not stop.is_set():
            await asyncio.sleep(0.01)
            beats += 1

    beating = asyncio.create_task(heartbeat())
    outcome = await fired(trigger(ray))
    stop.set()
    await beating
    assert outcome.state == "succeeded"
    assert min(beats_of_answers) > 2


@pytest.mark.parametrize("cancel", [True, False])
async def test_deadline(ray: FakeRay, clock: Clock, cancel: bool) -> None:
    submit(ray, Script(seconds=7200))
    ray.at_poll(2, lambda: clock.forward(3600))
    outcome = await fired(trigger(ray, deadline=time.time() + 3600, cancel_on_timeout=cancel))
    assert outcome.failure_class is FailureClass.TIMEOUT
    assert bool(ray.active) is not cancel


@pytest.mark.parametrize("silent", [False, True])
async def test_trigger_that_starts_past_its_deadline_polls_first(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    """Also if the cluster does not answer at that moment."""
    from airflow_provider_raybatch.cluster.jobs_api import transport

    published = summary()
    submit(ray, Script([line(Committed(summary=published), TERMS.key, 0)]))
    monkeypatch.setattr(transport.RetryPolicy, "wait", lambda policy, attempt: 0.0)
    if silent:
        ray.stage("GET", "/api", (503, "no backend"), times=8)
    outcome = await fired(trigger(ray, deadline=time.time() - 60, lease_terms=asdict(TERMS)))
    assert (outcome.state, outcome.summary) == ("succeeded", published)


async def test_a_job_that_finishes_while_it_is_stopped_counts(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(ray, Script(seconds=60))
    answer = ray.answer

    def finish(method: str, path: str, *rest: Any) -> Any:
        if path.endswith("/stop"):
            ray.jobs[JOB].script.seconds = 0
        return answer(method, path, *rest)

    monkeypatch.setattr(ray, "answer", finish)
    outcome = await fired(trigger(ray, deadline=time.time() + 0.2))
    assert outcome.state == "succeeded"


@pytest.mark.parametrize("proxy", [False, True])
async def test_a_wrong_answer_is_an_outcome(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, proxy: bool
) -> None:
    """A wrong token, or a proxy without its backend."""
    submit(ray, Script())
    ray.token = None if proxy else "needed"
    if proxy:
        monkeypatch.setattr(ray, "answer", lambda *arguments: (404, "default backend"))
    outcome = await fired(trigger(ray, session_name=None))
    expected = FailureClass.CLUSTER_UNREACHABLE if proxy else FailureClass.USER_ERROR
    assert outcome.failure_class is expected


async def test_a_connection_that_is_away_for_a_while(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(ray, Script())
    monkeypatch.setattr(ray_job, "_CONNECTION_WAITS", (0.01, 0.01))
    monkeypatch.delenv("AIRFLOW_CONN_RAY_DEFAULT")
    outcome = await fired(trigger(ray))
    assert (outcome.state, outcome.failure_class) == ("unreachable", FailureClass.CLUSTER_UNREACHABLE)
    assert "ray_default" in outcome.message

    class Waits:
        def __iter__(self) -> Iterator[float]:
            yield from (0.01, 0.01)
            monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url))
            yield 0.01

    monkeypatch.setattr(ray_job, "_CONNECTION_WAITS", Waits())
    assert (await fired(trigger(ray))).state == "succeeded"


async def test_unusable_connection_leaves_the_job_to_a_retry(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ray.script = lasting(600)
    following = defer(run).trigger
    bundle = tmp_path / "ca.pem"
    bundle.write_text("no certificate")
    with monkeypatch.context() as patched:
        extra = json.dumps({"ca_bundle": str(bundle)})
        patched.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, extra=extra))
        (event,) = [event async for event in following.run()]
    with pytest.raises(RayBatchUnavailableException, match="CA bundle"):
        batch().execute_complete(run.context(), event.payload)
    run.try_number = 2
    ray.at_poll(2, ray.end_jobs)
    assert batch().execute(run.context())["rows"] == 2
    assert len(ray.jobs) == 1


@pytest.mark.parametrize(("deferred_ago", "shown"), [(0.0, True), (3600.0, False)])
async def test_restarted_trigger_does_not_log_everything_again(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], deferred_ago: float, shown: bool
) -> None:
    submit(ray, Script(["loading the model"]))
    await fired(trigger(ray, deferred_at=time.time() - deferred_ago))
    assert ("loading the model" in capsys.readouterr().out) is shown


class TestOnKill:
    """Airflow calls `on_kill` for a user's action, and by mistake after a takeover by another triggerer."""

    @pytest.fixture(autouse=True)
    def _job(self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
        submit(ray, Script(seconds=60))
        monkeypatch.setattr(killable, "_STATE_WAITS", (0.0, 0.0, 0.0))

    def killed(self, ray: FakeRay, map_index: int = -1, **arguments: Any) -> RayJobTrigger:
        killed = trigger(ray, **arguments)
        ti = SimpleNamespace(dag_id="d", task_id="t", run_id="r", map_index=map_index)
        killed.task_instance = ti  # type: ignore[assignment]
        return killed

    def answering(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        """Let Airflow give these answers about the task's state, the last one again and again."""
        left = list(answers)

        def states(**asked: Any) -> Any:
            assert asked["task_ids"] == ["t"]
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))

    def slow_down(self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = ray.answer

        def slowly(*asked: Any) -> Any:
            time.sleep(0.2)
            return answer(*asked)

        monkeypatch.setattr(ray, "answer", slowly)

    @pytest.mark.parametrize(
        ("answer", "map_index", "stopped"),
        [
            ({"r": {"t": "deferred"}}, -1, False),
            ({"r": {"t_3": "deferred"}}, 3, False),
            ({"r": {"t_3": "deferred"}}, 4, True),
            ({"r": {"t": "failed"}}, -1, True),
            ({"r": {"t": "success"}}, -1, True),
            ({"r": {"t": None}}, -1, True),
            ({"r": {"t": "running"}}, -1, True),
            ({}, -1, True),
            ({"r": {"t": "up_for_retry"}}, -1, False),
            (ConnectionError("the API server is away"), -1, False),
        ],
    )
    async def test_stops_the_job_of_a_task_that_a_user_ended(
        self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, answer: Any, map_index: int, stopped: bool
    ) -> None:
        self.answering(monkeypatch, answer)
        await self.killed(ray, map_index).on_kill()
        assert (not ray.active) is stopped

    async def test_shortens_the_lease_if_the_state_stays_unknown(
        self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until then, another triggerer that has the trigger sends its own order, and a retry does, too."""
        self.answering(monkeypatch, ConnectionError("the API server is away"))
        terms = LeaseTerms(TERMS.key, attempt=3, deadline=5.0, orphan_timeout=21600.0, retry_pause=60.0)
        await self.killed(ray, lease_terms=asdict(terms)).on_kill()
        order = read_order(ray.packages[order_package(TERMS.key)], TERMS.key)
        assert order is not None
        assert (order.attempt, order.deadline, order.orphan_timeout) == (3, 5.0, 60 + 600)
        assert ray.active

    async def test_asks_again_where_airflow_is_away_for_a_while(
        self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        away = ConnectionError("the API server is away")
        self.answering(monkeypatch, away, away, {"r": {"t": "failed"}})
        await self.killed(ray).on_kill()
        assert not ray.active

    async def test_can_be_switched_off(self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answering(monkeypatch, {"r": {"t": "failed"}})
        await self.killed(ray, cancel_on_kill=False).on_kill()
        assert ray.active

    async def test_works_after_the_run_was_cancelled(
        self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.answering(monkeypatch, {"r": {"t": "failed"}})
        killed = self.killed(ray)
        running = asyncio.create_task(fired(killed))
        await asyncio.sleep(0.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert ray.active  # a cancellation alone, as at a triggerer's restart, stops nothing
        await killed.on_kill()
        assert not ray.active

    async def test_cleanup_touches_nothing(self, ray: FakeRay) -> None:
        await self.killed(ray).cleanup()
        assert ray.active

    async def test_goes_on_though_airflow_cancels_it_every_second(
        self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A triggerer cancels a trigger again in each of its cycles, also while `on_kill` runs."""
        self.answering(monkeypatch, {"r": {"t": "failed"}})
        runner = TriggerRunner()
        killed = self.killed(ray)
        killed.task_instance = None
        running = asyncio.create_task(runner.run_trigger(1, killed))
        runner.triggers[1] = {"task": running, "name": "t", "events": 0}
        await asyncio.sleep(0.3)
        self.slow_down(ray, monkeypatch)
        until = time.monotonic() + 120
        while ray.active and time.monotonic() < until:
            runner.to_cancel.append(1)
            await runner.cancel_triggers()
            await asyncio.sleep(0.05)
        assert not ray.active

    async def test_ends_after_the_job_however_often_it_is_cancelled(
        self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A triggerer that ends waits for its triggers, but not for asyncio tasks that they leave behind."""
        self.answering(monkeypatch, {"r": {"t": "failed"}})
        self.slow_down(ray, monkeypatch)
        killing = asyncio.create_task(self.killed(ray).on_kill())
        while not killing.done():
            await asyncio.sleep(0.01)
            killing.cancel()
        assert not ray.active
