# SPDX-License-Identifier: Apache-2.0
"""What of a driver's log is shown in the task's; the logs are those of real jobs on Ray 2.60."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.follow.log_tail import for_task_log
from airflow_provider_raybatch.contract.text import clean

BATCH = """\
2026-11-26 14:12:25,698	INFO job_manager.py:581 -- Runtime env is setting up.
Running entrypoint for job raybatch-echo: python -m airflow_provider_raybatch.job spec.json
[2026-11-26 14:13:00,430 E 26068 26724] core_worker.cc:2465: Actor with class name: 'MapWorker(MapBatches(Replica))' and ID: '599b81f4861f714b5fe5b0f702000000' has constructor arguments in the object store and max_restarts > 0. If the arguments in the object store go out of scope or are lost, the actor restart will fail. See https://github.com/ray-project/ray/issues/53727 for more details.
2026-11-26 14:13:00,431	WARNING __init__.py:28 -- Progress bars disabled. To enable, set `ray.data.DataContext.get_current().enable_progress_bars = True`.
2026-11-26 14:14:00,925	WARNING resource_manager.py:818 -- Cluster resources are not enough to run any task from ActorPoolMapOperator[MapBatches(Replica)]. The job may hang forever unless the cluster scales up.
"""  # noqa: E501 - as Ray wrote it


OWN_PROGRAM = """\
- 2026-11-26 14:40:05,651	INFO job_manager.py:581 -- Runtime env is setting up.
= Running entrypoint for job plain-1: python plain.py
= starting my own job
= \x1b[32mgreen from me\x1b[0m
- 2026-11-26 14:40:26,922	INFO worker.py:1691 -- Using address 192.0.2.2:40435 set in the environment variable RAY_ADDRESS
- 2026-11-26 14:40:26,958	INFO worker.py:1841 -- Connecting to existing Ray cluster at address: 192.0.2.2:40435...
- 2026-11-26 14:40:27,054	INFO worker.py:2029 -- Connected to Ray cluster. View the dashboard at \x1b[1m\x1b[32mhttp://127.0.0.1:52327 \x1b[39m\x1b[22m
= [0, 1, 2, 3]
= \x1b[33m(raylet)\x1b[0m Task A.die failed. There are 1 retries remaining, so the task will be retried. Error: The actor is temporarily unavailable: RpcError: RPC error: Socket closed rpc_code: 14
= caught ActorDiedError The actor died unexpectedly before finishing this task.
= 	class_name: A
= WARNING:mine:a warning of mine
=   warnings.warn("a python warning of mine")
= 100%|##########| 5/5 [00:01<00:00,  4.00it/s]
- 2026-11-26 14:41:03,086	INFO streaming_executor.py:215 -- Starting execution of Dataset dataset_0354K_0. Full logs are in /tmp/rb-ln_2pjl_/session/logs/ray-data
- 2026-11-26 14:41:03,086	INFO streaming_executor.py:216 -- Execution plan of Dataset dataset_0354K_0: InputDataBuffer[Input] -> AggregateNumRows[AggregateNumRows]
- 2026-11-26 14:41:03,150	INFO __init__.py:56 -- Progress will be logged because stdout is a non-interactive terminal.
- 2026-11-26 14:41:53,941	INFO logging_progress.py:174 -- ======= Running Dataset: dataset_0354K_0 =======
R 2026-11-26 14:41:53,943	INFO logging_progress.py:225 -- Total Progress: 0/?
- 2026-11-26 14:41:53,943	INFO logging_progress.py:227 -- Active & requested resources: 2/2 CPU, 0.0B/1.0GiB object store
- 2026-11-26 14:41:53,943	INFO logging_progress.py:181 --\x20
R 2026-11-26 14:41:53,943	INFO logging_progress.py:231 -- ReadRange->MapBatches(<lambda>)->Project: 800/1000
- 2026-11-26 14:41:53,943	INFO logging_progress.py:233 --   Tasks: 2 [backpressured:tasks(ResourceBudget)]; Actors: 0; Queued blocks: 2 (0.0B); Resources: 2.0 CPU, 0.0B object store
- 2026-11-26 14:41:53,943	INFO logging_progress.py:192 -- =================================================================
R 2026-11-26 14:42:04,369	INFO streaming_executor.py:371 -- Dataset dataset_0354K_0 execution finished in 61.28 seconds
- [2026-11-26 14:42:35,586 E 13939 13939] core_worker.cc:2465: Actor with class name: 'MapWorker(MapBatches(P))' and ID: 'a3042a2fa619' has constructor arguments in the object store and max_restarts > 0.
R [2026-11-26 14:47:00,690 E 13939 13939] logging.cc:474: *** SIGTERM received at time=1795704420 on cpu 1 ***
"""  # noqa: E501 - as Ray wrote it, with shorter ids
"""Each line behind a mark: left out (-), shown (=), or shown as Ray's own (R)."""


def test_prints_rows_and_errors_of_a_users_program_are_shown() -> None:
    for mark, line in (marked.split(" ", 1) for marked in OWN_PROGRAM.splitlines()):
        expected = {"-": None, "=": clean(line), "R": f"Ray: {line}"}[mark]
        assert for_task_log(line, batch=False) == expected


def test_a_batch_inference_that_goes_well_shows_nothing_of_ray() -> None:
    assert [for_task_log(line, batch=True) for line in BATCH.splitlines()] == [None] * 5


TELLING = [
    "\x1b[33m(raylet)\x1b[0m A worker died or was killed while executing a task.",
    "\x1b[33m(raylet, ip=10.0.0.7)\x1b[0m [2026-11-22 04:15:41,123 E 9 9] node_manager.cc:3: 1 killed",
    "[2026-11-26 14:13:00,430 C 26068 26724] gcs_rpc_client.h:151: Failed to connect to GCS within 60 s",
    "2026-11-26 14:13:00,431	ERROR streaming_executor_state.py:583 -- An exception was raised from a task",
    "2026-11-26 14:13:00,431	WARNING streaming_executor.py:31 -- Operator is slow",
    "2026-11-26 14:13:00,431	WARNING stats.py:1172 -- Error occurred during update_execution_metrics",
    "2026-11-26 14:13:00,431	INFO worker.py:2038 -- Started a local Ray instance.",
    "2026-11-26 14:13:00,431	INFO worker.py:3090 -- Put failed since the value was either too large",
    "[2026-11-26 14:13:00,430 E 9 9] core_worker.cc:2465: Actor with class name: 'Mine' and ID: '5' has "
    "constructor arguments in the object store and max_restarts > 0.",
    "(autoscaler +4s) Error: No available node types can fulfill resource request {'GPU': 8.0}",
    "Traceback (most recent call last):",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("line", TELLING)
def test_what_may_explain_a_failure_is_shown(line: str, batch: bool) -> None:
    text = for_task_log(line, batch)
    assert text is not None
    assert line.endswith(text.removeprefix("Ray: ")[-40:])
    assert "\x1b" not in text


PRINTED = [
    "Progress bars disabled",
    "100%|##########| 5/5 [00:01<00:00,  4.00it/s]",
    "[12] core_worker.cc:1: mine",
    "The job may hang forever unless help comes",
    "2026-11-22 04:15:41 INFO worker.py:3 -- mine",
    "INFO:mine:Runtime env is setting up.",
    "\x1b[36m(f pid=123)\x1b[0m task 1 says hello",
    "(raylet) is a word",
    "it said: [2026-11-26 14:13:00,430 I 9 9] core_worker.cc:1: quoted",
    "Running entrypoint for job of mine",
    "2026-11-26 14:12:25,698	INFO main.py:5 -- by the logger `ray`, as its documentation shows",
    "2026-11-26 14:12:25,698	INFO worker.py:5 -- by the logger `ray`, in a file of that name",
    "",
]


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("line", PRINTED)
def test_a_user_s_print_is_shown_as_it_is(line: str, batch: bool) -> None:
    text = for_task_log(line, batch)
    assert text is not None
    as_ray_writes = "by the logger `ray`" in line
    assert text == "Ray: " * as_ray_writes + line.replace("\x1b[36m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-26 14:13:00,430 I 9 9] core_worker.cc:1: Connected to the raylet",
        "[2026-11-26 14:13:00,430 D 9 9] (raylet) node_manager.cc:1: Heard of a node",
        "2026-11-26 14:13:00,431	INFO packaging.py:588 -- Creating a file package for local module 'x'.",
        "2026-11-26 14:13:00,431	INFO packaging.py:380 -- Pushing file package 'gcs://x.zip' (0.1MiB)",
        "2026-11-26 14:13:00,431	INFO packaging.py:393 -- Successfully pushed file package 'gcs://x.zip'.",
        "(autoscaler +4s) Tip: use `ray status` to view detailed cluster status.",
    ],
)
def test_what_ray_says_of_itself_is_left_to_its_log(line: str, batch: bool) -> None:
    assert for_task_log(line, batch) is None


@pytest.mark.parametrize(
    ("line", "mark"),
    [
        (BATCH.splitlines()[-1], "Ray: "),
        ("(raylet) The lease cannot be scheduled right now. You can ignore this message if this", ""),
    ],
)
def test_lack_of_resources_of_a_users_program_is_shown(line: str, mark: str) -> None:
    assert for_task_log(line, batch=False) == f"{mark}{line}"
    assert for_task_log(line, batch=True) is None
