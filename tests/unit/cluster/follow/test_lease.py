# SPDX-License-Identifier: Apache-2.0
"""A job with a follower never ends itself as an orphan; a job without one does, after `orphan_timeout`."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.follow import control as followers
from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.submission import order_package, read_order
from airflow_provider_raybatch.job.control import control as driver
from tests.support.airflow_tasks import Clock

KEY = "ab" * 32
PROGRESS = driver.Progress(done=0, total=1)


@pytest.mark.parametrize("orphan_timeout", [60.0, 3600.0, 7 * 86400.0])
async def test_a_lease_lasts_as_long_as_it_is_followed(ray, client, monkeypatch, orphan_timeout):
    clock = Clock()
    monkeypatch.setattr(followers.time, "monotonic", clock)
    job = driver.Control(LimitArguments(orphan_timeout=orphan_timeout), lambda event: None, clock)
    lease = Lease(LeaseTerms(KEY, attempt=1, orphan_timeout=orphan_timeout))

    def pass_time(seconds):
        clock.forward(seconds)
        content = ray.packages.get(order_package(KEY))
        job.obey(None if content is None else read_order(content, KEY))

    for _ in range(100):
        assert await lease.renew(client) is None
        pass_time(orphan_timeout / 20)
        job.check(PROGRESS)
    pass_time(orphan_timeout)
    with pytest.raises(RaybatchError, match="orphan_timeout: no task has followed the job"):
        job.check(PROGRESS)


def latest(ray):
    return read_order(ray.packages[order_package(KEY)], KEY)


async def test_an_order_under_way_does_not_undo_a_kill(ray, client):
    """A kill runs in a signal handler, beside the thread that follows the job."""
    lease = Lease(LeaseTerms(KEY, attempt=1, orphan_timeout=3600.0, retry_pause=30.0))

    def kill(answer):
        lease.terms = lease.terms.in_doubt()
        return answer()

    ray.stage("PUT", "/api/packages", kill)
    await lease.renew(client)
    assert latest(ray).orphan_timeout == 30 + 600


async def test_a_follower_that_outlives_a_kill_keeps_its_job(ray, client, monkeypatch):
    """As a worker that is shut down slowly does: its orders go on, more often."""
    clock = Clock()
    monkeypatch.setattr(followers.time, "monotonic", clock)
    lease = Lease(LeaseTerms(KEY, attempt=1, orphan_timeout=6 * 3600.0))
    assert await lease.shorten(client) == 600
    first = latest(ray)
    clock.forward(61)
    await lease.renew(client)
    assert (latest(ray).orphan_timeout, latest(ray) == first) == (600, False)


async def test_the_next_attempt_lengthens_a_shortened_lease(ray, client):
    driver_side = driver.Control(
        LimitArguments(orphan_timeout=6 * 3600.0), lambda event: None, clock := Clock()
    )
    await Lease(LeaseTerms(KEY, attempt=1, orphan_timeout=6 * 3600.0)).shorten(client)
    driver_side.obey(latest(ray))
    await Lease(LeaseTerms(KEY, attempt=2, orphan_timeout=6 * 3600.0)).renew(client)
    driver_side.obey(latest(ray))
    clock.forward(3600)
    assert driver_side.check(PROGRESS) is None
