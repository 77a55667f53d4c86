# SPDX-License-Identifier: Apache-2.0
"""A kill stops the job of its task, also one that arrives late or that Ray has not started yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.follow import loop
from airflow_provider_raybatch.cluster.follow.loop import stop_at_once
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from tests.support.fake_ray import Answer, FakeRay, lasting

NAME = "raybatch-x-0"


def submit(ray: FakeRay) -> None:
    ray.script = lasting(600)
    ray.submit(submission_id=NAME)


async def test_job_submitted_after_the_stop_order_is_stopped(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its POST is answered right after the order to stop, so no submission is under way any more."""
    monkeypatch.setattr(loop, "_POSTED_SECONDS", 0.0)
    answer = ray.answer

    def arrives_after(method: str, path: str, *rest: Any) -> Any:
        answered = answer(method, path, *rest)
        if path.endswith("/stop") and not ray.jobs:
            submit(ray)
        return answered

    monkeypatch.setattr(ray, "answer", arrives_after)
    assert await stop_at_once(ClusterAddress(ray.url), NAME, lambda: not ray.jobs)
    assert not ray.active


async def test_pending_job_is_asked_again_to_stop(ray: FakeRay) -> None:
    """Ray accepts the stop of a pending job, and ignores it."""
    submit(ray)
    ray.jobs[NAME].script.pending = math.inf
    stop = f"/api/jobs/{NAME}/stop"

    def begin(answer: Callable[[], Answer]) -> Answer:
        answered = answer()
        ray.jobs[NAME].script.pending = 0
        return answered

    ray.stage("POST", stop, begin)
    assert await stop_at_once(ClusterAddress(ray.url), NAME, lambda: False)
    assert ray.count("POST", stop) == 2
    assert not ray.active
