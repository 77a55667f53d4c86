# SPDX-License-Identifier: Apache-2.0
"""Token limits, time limits and stops keep finished rows; a slow response is not a stall."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.planning import cluster_view
from tests.support.ray_processes import coordinators
from tests.support.repeated_task import ROWS, RepeatedTask, answers
from tests.support.s3_server import S3Server

from ..end_to_end.waiting import wait_for

SLOTS = 20
LIMITS: dict[str, tuple[Callable[[int], dict[str, Any]], FailureClass, str]] = {
    "tokens": (
        lambda seconds: {"max_tokens_total": 100},
        FailureClass.LIMIT_REACHED,
        "of 100 allowed; raise the limit",
    ),
    "deadline": (
        lambda seconds: {"deadline": time.time() + seconds},
        FailureClass.TIMEOUT,
        "the job's deadline passed; ",
    ),
    "stop": (lambda seconds: {"stops": True}, FailureClass.CANCELLED, "the job was stopped; "),
}


@pytest.mark.parametrize(
    ("limit", "on_s3"),
    [
        pytest.param("tokens", False, marks=pytest.mark.turn(0)),
        pytest.param("deadline", False, marks=pytest.mark.turn(5)),
        pytest.param("stop", True, marks=pytest.mark.turn(3)),
    ],
)
def test_a_limit_stops_the_job_and_keeps_what_is_done(
    tmp_path: Path, ray_here: Any, s3: S3Server, limit: str, on_s3: bool
) -> None:
    task = RepeatedTask(tmp_path, s3 if on_s3 else None)
    texts = [f"text {number}" for number in range(ROWS)]
    task.input(texts)
    slowly = {
        "engine": "echo",
        "engine_args": {"seconds_per_token": 0.5, "max_num_seqs": SLOTS},
        "replicas": 1,
        "batch_size": 200,
    }
    limited, ends, fragment = LIMITS[limit]
    attempts = 0
    # How soon rows are finished is the machine's, and all take longer than one step more.
    while not task.kept():
        attempts += 1
        sentence = task.refused(ends, **slowly, **limited(attempts * 8))
    assert fragment in sentence
    wait_for("the coordinator's end", lambda: not coordinators(), 60)
    kept = task.kept()
    assert kept < ROWS
    assert attempts == 1 or limit == "deadline"
    # What was finished is written, although flush_interval has not passed, and counted.
    assert 0 < int(re.findall(r"; (\d+) of 400 rows are kept, and ", sentence)[0]) <= kept
    assert not task.out.list("data")
    manifest = task.run(engine="echo")
    assert answers(manifest, task.out) == {f"r{number}": text for number, text in enumerate(texts)}
    assert task.asked(manifest) == ROWS - kept
    assert task.asked_in_all() <= ROWS + SLOTS * attempts  # the rows in the engine's slots are asked again
    assert manifest.counts.resumed == kept


@pytest.mark.turn(2, 6)
def test_no_progress_timeout_spares_a_slow_response(
    task: RepeatedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own timeout counts finished chunks and would end the job, because the only chunk takes longer."""
    import ray

    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "execution_no_progress_timeout_s", 2)
    slow = {"engine": "echo", "engine_args": {"seconds_per_token": 0.25}}

    def run(no_progress_timeout: int) -> BatchManifest:
        task.input(["word " * (5 * no_progress_timeout)])  # a response of 1.25 times that
        return task.run(**slow, no_progress_timeout=no_progress_timeout)

    try:
        manifest = run(20)
    except RaybatchError as error:
        if not re.search("no replica has started|still starting", str(error)):
            raise
        manifest = run(100)  # on this machine, the replica's own start takes longer than 20 s
    assert manifest.counts.ok == 1
    assert context.execution_no_progress_timeout_s == -1


def test_each_node_tells_how_much_memory_it_has(task: RepeatedTask) -> None:
    """Ray's own number is less: what was free when it started."""
    found = cluster_view.most_memory()
    assert found == cluster_view._memory_here()
    assert found > sum(ray.cluster_resources()[name] for name in ("memory", "object_store_memory"))
