# SPDX-License-Identifier: Apache-2.0
"""Engines that stay after their job: the next one takes them over, and none is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineState
from tests.integration.end_to_end.waiting import wait_for
from tests.support.engine_log import Engine, engines
from tests.support.ray_processes import run_with_own_ray
from tests.support.repeated_task import RepeatedTask, answers
from tests.support.warm_engines import end_all, warm_engines

pytestmark = pytest.mark.slow

TEXTS = [f"text {number}" for number in range(40)]


@pytest.fixture(autouse=True)
def none_left(task: RepeatedTask) -> Iterator[None]:
    task.input(TEXTS)
    yield
    end_all()
    wait_for("no warm engine", lambda: not warm_engines(), 60)


def one_rests() -> WarmEngineState:
    """Wait for the one warm engine: it has no holder, and answers in time."""

    def found() -> WarmEngineState | None:
        (state,) = warm_engines().values()
        return state if state is not None and state.is_free else None

    return wait_for("a free engine", found, 30)


def used(task: RepeatedTask) -> list[Engine]:
    return sorted(engines(task._requests), key=lambda engine: engine.opened)


def test_the_next_job_takes_the_engine_of_the_one_before(task: RepeatedTask) -> None:
    first = task.run("one", keep_warm=300)
    assert 0 < one_rests().ends_in <= 300
    other = {"run_id": "r2", "prompt": "other {row.text}", "sampling": {"max_tokens": 2}}
    second = task.run("two", keep_warm=300, **other)
    assert answers(first) == {f"r{number}": text for number, text in enumerate(TEXTS)}
    assert set(answers(second).values()) == {"other text"}
    assert [task.asked(one) for one in (first, second)] == [40, 40]
    # A job without work leaves it to the next; one that asks for no more time ends it.
    again = task.run("cleared", keep_warm=300, **other)
    assert (again.counts.ok, task.asked(again)) == (40, 0)
    assert one_rests().is_free
    third = task.run("three", run_id="r3", keep_warm=0)
    used_by = [one.submission_id for one in (first, second, third)]
    assert [engine.submission for engine in used(task)] == used_by
    (pid,) = {engine.pid for engine in used(task)}
    wait_for("its end", lambda: not warm_engines(), 30)
    assert not psutil.pid_exists(pid)


@pytest.mark.thorough("a poison row in a warm engine; each alone runs always")
def test_a_row_that_kills_it_leaves_no_dead_engine_to_the_next(task: RepeatedTask) -> None:
    task.input([*TEXTS, "poison"])
    made = task.run("one", keep_warm=300, engine_args={"kill_pattern": "poison"}, max_errors=1)
    assert (made.counts.ok, made.counts.error) == (40, 1)
    died = {engine.pid for engine in used(task) if "poison" in [prompt for prompt, _ in engine.asked]}
    assert len(died) >= 1
    task.input(TEXTS)
    task.run("two", run_id="r2", keep_warm=300, engine_args={"kill_pattern": "poison"})
    assert used(task)[-1].pid not in died
    assert used(task)[-1].pid == used(task)[-2].pid


@pytest.mark.thorough("a warm engine that hangs; the wait for it is long")
def test_an_engine_that_hangs_is_not_handed_on(task: RepeatedTask) -> None:
    """The job that stalls with it ends it: its retry would stall, too."""
    task.input([*TEXTS, "hangs"])
    args = {"hang_pattern": "hangs"}

    def hung() -> set[int]:
        return {engine.pid for engine in used(task) if "hangs" in [prompt for prompt, _ in engine.asked]}

    for seconds in (5, 20, 60):  # in which a busy host may start nothing
        task.refused(
            FailureClass.STALLED,
            token=f"one {seconds}",
            keep_warm=300,
            no_progress_timeout=seconds,
            engine_args=args,
        )
        if hung():
            break
    wait_for("its end", lambda: not any(state and state.is_free for state in warm_engines().values()), 30)
    task.input(TEXTS)
    task.run("two", run_id="r2", keep_warm=300, engine_args=args)
    assert hung()
    assert used(task)[-1].pid not in hung()


@pytest.mark.thorough("an engine of a stopped job; the next job takes one always, units step its clock")
def test_a_stopped_job_gives_its_engine_back(task: RepeatedTask) -> None:
    """And one that died while it was idle is not handed on."""
    pace = {"seconds_per_token": 1.0, "max_num_seqs": 4}
    task.stopped(None, token="one", keep_warm=300, engine_args=pace, flush_interval=1)
    assert one_rests().is_free
    rest = task.run("one", keep_warm=300, engine_args=pace, limit=20)
    (pid,) = {engine.pid for engine in used(task)}
    assert 0 < task.asked(rest) < 20
    os.kill(pid, signal.SIGKILL)
    task.run("two", run_id="r2", keep_warm=300, engine_args=pace, limit=4)
    assert len({engine.pid for engine in used(task)}) == 2


@pytest.mark.vllm
@pytest.mark.thorough("a warm vLLM on a Ray; a warm echo runs always")
def test_vllm_answers_the_next_job_with_its_own_sampling(task: RepeatedTask) -> None:
    pytest.importorskip("vllm")
    model = str(Path(__file__).parents[3] / "dags_examples/demo_model/model")
    topics = ("photosynthesis", "gravity", "volcanoes")
    task.input([f"Write one question and answer about: {topic}" for topic in topics])
    asked = {"model": model, "engine": "vllm", "keep_warm": 300}

    def responses(token: str, most: int) -> dict[str, str]:
        found = task.run(token, run_id=token, sampling={"temperature": 0, "max_tokens": most}, **asked)
        return answers(found)

    whole, names = responses("one", 8), list(warm_engines())
    cut = responses("two", 2)
    assert list(warm_engines()) == names != []
    assert all(whole[row].startswith(text) and len(text) < len(whole[row]) for row, text in cut.items())


ON_GPUS: tuple[dict[str, Any], ...] = (
    {
        "own_engines_name_their_gpus": ["0", "1"],
        "both_stay_warm": [0, 2],
        "two_share_the_rows": [[20, 20], ["0", "1"]],
        "one_makes_room_for_a_task": ["a GPU", 1],
        "a_placement_group_finds_room_as_a_whole": [2, 0],
    },
    {
        "another_engine_finds_room": [2, 1],
        "a_job_waits_for_its_like_and_takes_it": [1, 1],
        "one_that_waits_in_vain_is_ended": [1, 0],
        "one_that_starts_when_its_job_ends_is_the_next_ones": [1, 1, [40, 0], ["0", "1"], 2],
        "a_replica_that_dies_leaves_its_engine_to_no_one": [2, True, 1],
        "an_engine_that_is_lost_while_it_starts": [2, 40],
    },
)
"""What is seen in each scene of ``warm_engines_gpu.py``."""


@pytest.mark.timeout(800)
@pytest.mark.thorough("warm engines that wait for GPUs; unit/job/warm_engines steps a clock")
@pytest.mark.parametrize(
    "scenes",
    [pytest.param(one, id=f"{number}") for number, one in enumerate(ON_GPUS)],
)
def test_engines_on_gpus_are_shared(tmp_path: Path, scenes: dict[str, Any]) -> None:
    seen, _ = run_with_own_ray("warm_engines_gpu.py", str(tmp_path), *scenes, seconds=700)
    assert seen == scenes
