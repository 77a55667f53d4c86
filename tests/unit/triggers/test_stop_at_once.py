# SPDX-License-Identifier: Apache-2.0
"""A kill stops the job that its task submits: also one that arrives late, or that Ray has not started yet."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.cluster.follow import loop
from airflow_provider_raybatch.cluster.follow.loop import stop_at_once
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from tests.support.fake_ray import FakeRay, lasting

NAME = "raybatch-x-0"


def submit(ray: FakeRay) -> None:
    ray.script = lasting(60)
    ray._submit({"submission_id": NAME, "entrypoint": "sleep 60"})


async def test_a_job_that_arrives_between_the_order_and_the_next_look(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its POST is answered right after the order to stop was: nothing is under way any more then."""
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


async def test_a_job_that_has_not_begun_is_told_again(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray says that it stops a pending job, and does not."""
    answer, ignored = ray.answer, []

    def ignores_the_first(method: str, path: str, *rest: Any) -> Any:
        if path.endswith("/stop") and not ignored:
            ignored.append(path)
            return 200, '{"stopped": true}'
        return answer(method, path, *rest)

    submit(ray)
    monkeypatch.setattr(ray, "answer", ignores_the_first)
    assert await stop_at_once(ClusterAddress(ray.url), NAME, lambda: False)
    assert ignored
    assert not ray.active
