# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.output.record import MOST_POINTS, Series

BEGAN = 1_000_000.0


def report(seconds: float, state: str = "ready", name: str = "a") -> ReplicaProgress:
    """Ten rows a second of three tokens each, with a hundred more in the engine."""
    rows = int(10 * seconds)
    return ReplicaProgress(
        name,
        "n",
        state,
        rows,
        input_tokens=rows,
        output_tokens=2 * rows,
        rows_in_flight=100,
        first_request=BEGAN,
    )


def test_the_start_without_a_request_is_left_out() -> None:
    series = Series(BEGAN)
    series.add([ReplicaProgress("a", "n")], 5, BEGAN + 1)
    assert series.moments == []


@pytest.mark.parametrize("hours", [0.01, 1, 100])
def test_points_stay_few_however_long_a_job_runs(hours: float) -> None:
    series, seconds = Series(BEGAN), int(3600 * hours)
    for second in range(0, seconds + 1, max(1, seconds // 5000)):
        replicas = [report(second), report(second, name="b"), report(0, "starting", "c")]
        series.add(replicas, 7 + 20 * second, BEGAN + second)
    moments = series.moments
    assert min(seconds, MOST_POINTS // 2) <= len(moments) <= MOST_POINTS
    assert moments[-1].seconds == pytest.approx(seconds, rel=0.01)
    assert moments[-1].rows == 7 + 20 * moments[-1].seconds
    assert {one.rows_in_flight for one in moments} == {200}
    assert {one.replicas for one in moments} == {2}
    assert all(one.tokens_per_second == pytest.approx(60, rel=0.1) for one in moments[1:])


def test_a_rate_is_not_negative_after_a_process_was_lost() -> None:
    series = Series(BEGAN)
    series.add([report(10)], 100, BEGAN + 10)
    series.add([report(2)], 20, BEGAN + 20)
    assert [one.tokens_per_second for one in series.moments] == [30.0, 0.0]


def test_an_ended_replica_has_no_rows_in_flight() -> None:
    series = Series(BEGAN)
    series.add([report(10, "ended")], 100, BEGAN + 10)
    assert [(one.rows_in_flight, one.replicas) for one in series.moments] == [(0, 0)]
