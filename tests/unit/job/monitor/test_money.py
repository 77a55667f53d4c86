# SPDX-License-Identifier: Apache-2.0
"""What a run costs: GPU seconds times prices, over all its attempts."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.job.monitor.money import HeldGpus, Money, spent_before
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress

PRICES = CostArguments(gpu_hour_price={"H100": 3.9, "*": 1.2}, currency="EUR")
NOW = 1_000.0


def money(prices: CostArguments = PRICES, seconds: float = 100.0, **earlier: float) -> Money:
    """Return that of two replicas of two GPUs that have run for `seconds`, one on each type of node."""
    held = HeldGpus(2, NOW - seconds, {"a": "H100", "b": "L4"}.__getitem__)
    held.look(reports(seconds), NOW)
    return Money(prices, earlier, held)


def reports(seconds: float) -> list[ReplicaProgress]:
    return [ReplicaProgress(node, node, seen=NOW, placed=NOW - seconds) for node in "ab"]


@pytest.mark.parametrize("seconds", [0.0, 0.04, 33.3333, 12345.678])
def test_cost_follows_exactly_from_what_is_told(seconds: float) -> None:
    one = money(seconds=seconds, H100=17.77, T4=3.21)
    told, prices = one.gpu_seconds_by_type, one.used_prices
    assert one.cost == pytest.approx(sum(told[kind] * prices[kind] for kind in told) / 3600, abs=1e-6)
    assert prices.items() <= {"H100": 3.9, "L4": 1.2, "T4": 1.2}.items()


def test_attempts_add_up_by_type() -> None:
    assert money(L4=60.0, A100=3.0).gpu_seconds_by_type == {"A100": 3.0, "H100": 200.0, "L4": 260.0}


def test_without_prices_there_is_no_cost() -> None:
    one = money(CostArguments())
    assert (one.cost, one.expected(10), one.used_prices, one.without_price) == (None, None, {}, [])


def test_one_type_without_a_price_leaves_the_cost_unknown() -> None:
    one = money(CostArguments(gpu_hour_price={"H100": 3.9}))
    assert (one.cost, one.without_price, one.used_prices) == (None, ["L4"], {"H100": 3.9})


def test_a_job_on_cpus_costs_nothing() -> None:
    for one in (Money(PRICES), Money()):
        assert (one.cost, one.expected(100)) == (0.0, 0.0)


def test_expected_is_what_is_held_for_the_time_that_is_left() -> None:
    one = money()
    assert one.expected(300.0) == pytest.approx(4 * (one.cost or 0))
    assert one.expected(0.0) == one.cost
    assert one.expected(None) is None


def test_progress_tells_the_money() -> None:
    tracker = Tracker(10, 0, NOW - 100, money=money())
    done = [ReplicaProgress("a", "a", rows=10, written=10, seen=NOW, placed=NOW - 100)]
    found = tracker.update(done, 1, NOW)
    assert (found.cost, found.expected_cost, found.currency) == (0.216666667, 0.216666667, "EUR")
    plain = Tracker(10, 0, NOW, money=money(CostArguments())).update(done, 1, NOW)
    assert (plain.cost, plain.expected_cost, plain.currency) == (None, None, None)


def test_earlier_jobs_count_since_the_last_clear() -> None:
    """Also one of the same id: after a head restart, submission ids begin anew."""
    records = [
        JobRecord(
            run_token=token,
            submission_id="s-0",
            began=1,
            at=2,
            gpu_seconds_by_type={"H100": seconds, "L4": 1},
        )
        for token, seconds in (("before", 100.0), ("now", 20.0), ("now", 3.0))
    ]
    assert spent_before(records, "now") == {"H100": 23.0, "L4": 2.0}
    assert spent_before(records, "other") == {}
