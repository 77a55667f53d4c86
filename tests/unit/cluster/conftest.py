# SPDX-License-Identifier: Apache-2.0
"""A client of a fake Ray whose jobs run until the test ends them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator

import pytest

from airflow_provider_raybatch.cluster.jobs_api import client as jobs
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.cluster.submit import resolve as submission
from tests.support.fake_ray import FakeRay, Script, serving


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    fake = FakeRay()
    fake.script = lambda ray, body: Script(seconds=math.inf)
    with serving(fake):
        yield fake


@pytest.fixture(autouse=True)
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_STOP_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(submission, "_POST_WAIT", 0.01)


@pytest.fixture
async def client(ray: FakeRay) -> AsyncIterator[RayJobsClient]:
    retries = RetryPolicy(attempts=3, first_wait=0.01)
    async with RayJobsClient(ClusterAddress(ray.url), retries=retries) as opened:
        yield opened
