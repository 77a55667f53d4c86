# SPDX-License-Identifier: Apache-2.0
"""A kill before a task has a job: before its POST or during it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.places.choosing import place_of
from airflow_provider_raybatch.places.place import Cluster, RunRef
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, defer
from tests.support.fake_ray import Answer, FakeRay, lasting

KEY = SubmissionKey(TaskKey(dag_id="d", run_id="r", task_id="t"), "token")


def posting(number: int, url: str) -> CancelHandler:
    """The handler of an attempt that submits its job with a number."""
    cancel_handler = CancelHandler()
    cancel_handler.concerns(place_of("ray_default"), RunRef(KEY), None)
    cancel_handler.claimed(Cluster(ClusterAddress(url)))
    cancel_handler.posting(KEY.submission_id(number))
    return cancel_handler


@pytest.mark.parametrize("deferrable", [False, True])
@pytest.mark.parametrize("jobs", [0, 1], ids=["nothing to adopt", "a job to adopt"])
def test_a_task_that_is_killed_early_neither_submits_nor_adopts(
    ray: FakeRay, run: Run, jobs: int, deferrable: bool
) -> None:
    ray.script = lasting(600)
    if jobs:
        defer(run)
        run.try_number += 1
    operator = batch(deferrable=deferrable)
    operator.on_kill()
    with pytest.raises(RayBatchException, match="The task was killed while it submitted its job") as caught:
        operator.execute(run.context())
    assert caught.value.failure_class is FailureClass.CANCELLED
    assert len(ray.jobs) == jobs
    assert not ray.active


def test_a_kill_while_the_next_cluster_is_made_asks_no_lost_one(ray: FakeRay) -> None:
    ray.script = lasting(600)
    cancel_handler = posting(1, "http://127.0.0.1:9")
    cancel_handler.making()
    ray._submit({"submission_id": KEY.submission_id(0), "entrypoint": "sleep 60"})
    cancel_handler.kill(logging.getLogger(__name__))
    assert not ray.active


def test_a_kill_during_the_post_waits_for_the_job(ray: FakeRay) -> None:
    """Airflow's supervisor ends the task five seconds later, so the kill must wait for the job itself."""
    ray.script = lasting(600)
    cancel_handler = posting(0, ray.url)
    body = {"submission_id": KEY.submission_id(0), "entrypoint": "sleep 60"}

    def arrive(answer: Callable[[], Answer]) -> Answer:
        unknown = answer()
        ray._submit(body)
        return unknown

    ray.stage("POST", f"/api/jobs/{KEY.submission_id(0)}/stop", arrive)
    cancel_handler.kill(logging.getLogger(__name__))
    assert ray.jobs
    assert not ray.active
