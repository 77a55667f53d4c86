# SPDX-License-Identifier: Apache-2.0
"""The job of a cleared run is stopped by the first attempt after the clear, or by a later one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.exceptions import RayBatchFailException
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, defer, left
from tests.support.fake_ray import FakeRay, lasting


def test_unstopped_job_is_stopped_by_the_next_attempt(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.script = lasting(60)
    defer(run)
    (old,) = ray.jobs
    run.clear()
    answer = ray.answer

    def refuses(method: str, path: str, *rest: Any) -> Any:
        return (403, "Forbidden") if path.endswith("/stop") else answer(method, path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(ray, "answer", refuses)
        defer(run)  # it continues with its own job
    assert len(ray.active) == 2
    run.try_number += 1
    defer(run)
    assert len(ray.jobs) == 2
    assert old not in ray.active
    assert len(ray.active) == 1


def test_unstopped_job_is_stopped_by_an_attempt_that_is_refused(ray: FakeRay, run: Run) -> None:
    """A task is cleared to run with other arguments, which are wrong."""
    ray.script = lasting(600)
    defer(run)
    run.clear()
    with pytest.raises(RayBatchFailException, match="limit"):
        left(batch(), limit=0).execute(run.context())
    assert not ray.active
