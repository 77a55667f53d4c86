# SPDX-License-Identifier: Apache-2.0
"""What of a driver's log is shown in the task's; the logs are those of real jobs on Ray 2.60."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.follow.ray_lines import for_task_log

BATCH = """\
2026-11-26 14:12:25,698	INFO job_manager.py:581 -- Runtime env is setting up.
Running entrypoint for job raybatch-echo: python -m airflow_provider_raybatch.job spec.json
[2026-11-26 14:13:00,430 E 26068 26724] core_worker.cc:2465: Actor with class name: 'MapWorker(MapBatches(Replica))' and ID: '599b81f4861f714b5fe5b0f702000000' has constructor arguments in the object store and max_restarts > 0. If the arguments in the object store go out of scope or are lost, the actor restart will fail. See https://github.com/ray-project/ray/issues/53727 for more details.
2026-11-26 14:13:00,431	WARNING __init__.py:28 -- Progress bars disabled. To enable, set `ray.data.DataContext.get_current().enable_progress_bars = True`.
2026-11-26 14:14:00,925	WARNING resource_manager.py:818 -- Cluster resources are not enough to run any task from ActorPoolMapOperator[MapBatches(Replica)]. The job may hang forever unless the cluster scales up.
"""  # noqa: E501 - as Ray wrote it


def test_a_batch_inference_that_goes_well_shows_nothing_of_ray() -> None:
    assert [shown for line in BATCH.splitlines() if (shown := for_task_log(line, batch=True))] == []


TELLING = [
    "\x1b[33m(raylet)\x1b[0m A worker died or was killed while executing a task.",
    "\x1b[33m(raylet, ip=10.0.0.7)\x1b[0m [2026-11-22 04:15:41,123 E 9 9] node_manager.cc:3: 1 killed",
    "[2026-11-26 14:13:00,430 C 26068 26724] gcs_rpc_client.h:151: Failed to connect to GCS within 60 s",
    "2026-11-26 14:13:00,431	ERROR streaming_executor_state.py:583 -- An exception was raised from a task",
    "2026-11-26 14:13:00,431	WARNING streaming_executor.py:31 -- Operator is slow",
    "(autoscaler +4s) Error: No available node types can fulfill resource request {'GPU': 8.0}",
    "Traceback (most recent call last):",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("line", TELLING)
def test_what_may_explain_a_failure_is_shown(line: str, batch: bool) -> None:
    shown = for_task_log(line, batch)
    assert shown is not None
    assert line.endswith(shown.removeprefix("Ray: ")[-40:])
    assert "\x1b" not in shown


PRINTED = [
    "Progress bars disabled",
    "100%|##########| 5/5 [00:01<00:00,  4.00it/s]",
    "[12] core_worker.cc:1: mine",
    "The job may hang forever unless somebody comes",
    "2026-11-22 04:15:41 INFO worker.py:3 -- mine",
    "INFO:mine:Runtime env is setting up.",
    "\x1b[36m(f pid=123)\x1b[0m task 1 says hello",
    "(raylet) is a word",
    "Running entrypoint for job of mine",
    "2026-11-26 14:12:25,698	INFO main.py:5 -- by the logger `ray`, as its documentation shows",
    "",
]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("line", PRINTED)
def test_a_user_s_print_is_shown_as_it_is(line: str, batch: bool) -> None:
    shown = for_task_log(line, batch)
    assert shown is not None
    assert shown.removeprefix("Ray: ") == line.replace("\x1b[36m", "").replace("\x1b[0m", "")


def test_of_a_users_own_program_more_is_shown() -> None:
    """It has no other progress, and only its author knows whether the cluster suffices."""
    kept = [
        "2026-11-26 14:14:00,925	WARNING resource_manager.py:818 -- Cluster resources are not enough",
        "2026-11-26 14:14:00,925	INFO streaming_executor.py:371 -- Dataset d execution finished in 3 s",
    ]
    assert [for_task_log(line, batch=False) for line in kept] == [f"Ray: {line}" for line in kept]
    own = "Running entrypoint for job mine: python main.py"
    assert for_task_log(own, batch=False) == own
