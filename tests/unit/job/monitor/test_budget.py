# SPDX-License-Identifier: Apache-2.0
"""The budgets of a job, and the error when one is used up."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.arguments.limits import CostArguments, LimitArguments
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.job.monitor.budgets import Budget, check_cost
from airflow_provider_raybatch.job.monitor.money import HeldGpus, Money
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.ledger import spent
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import failure, part, response

NOW = 10_000.0
REPORTS = [
    ReplicaProgress("a", "n", input_tokens=600, output_tokens=100, seen=NOW, placed=NOW - 3600),
    ReplicaProgress("b", "n", input_tokens=50, seen=NOW, placed=NOW - 3600),
]


def money(prices: CostArguments | None = None, gpus: int = 4, **earlier: float) -> Money:
    """Return that of a run whose replicas were placed an hour ago."""
    return Money(prices or CostArguments(), earlier, HeldGpus(gpus, NOW - 3600, lambda node: "H100"))


def reached(limits: LimitArguments, spent_before: int = 0, of: Money | None = None) -> RaybatchError:
    with pytest.raises(RaybatchError) as caught:
        Budget(limits, spent_before, of or money()).check(REPORTS, NOW)
    return caught.value


def test_max_tokens_total_counts_all_submissions() -> None:
    limits = LimitArguments(max_tokens_total=1000)
    Budget(limits, 249).check(REPORTS, NOW)
    error = reached(limits, spent_before=250)
    assert str(error) == (
        "max_tokens_total: 1,000 tokens are paid for, of 1,000 allowed; raise the "
        "limit and clear the task to go on."
    )
    assert error.failure_class is FailureClass.LIMIT_REACHED
    assert not error.failure_class.retryable


def test_max_gpu_hours_are_of_one_attempt() -> None:
    Budget(LimitArguments(max_gpu_hours=8.01), 0, money(H100=9 * 3600)).check(REPORTS, NOW)
    error = reached(LimitArguments(max_gpu_hours=8))
    assert "8.00 GPU hours are used, of 8 allowed; raise" in str(error)
    assert error.failure_class is FailureClass.LIMIT_REACHED


class TestMaxCost:
    def test_counts_all_attempts(self) -> None:
        """Two replicas of four GPUs hold them for an hour, and earlier attempts had one for an hour."""
        prices = CostArguments(gpu_hour_price={"H100": 2}, max_cost=18.01, currency="EUR")
        Budget(LimitArguments(), 0, money(prices, H100=3600)).check(REPORTS, NOW)
        error = reached(LimitArguments(), of=money(prices.model_copy(update={"max_cost": 18.0}), H100=3600))
        assert str(error) == (
            "max_cost: 18.00 EUR is spent by all attempts since the last clear, of 18.00 EUR allowed; clear "
            "the task to go on with the rows that are left, for up to as much again, or raise max_cost "
            "before."
        )
        assert error.failure_class is FailureClass.LIMIT_REACHED

    def test_is_refused_at_once_where_it_is_spent(self) -> None:
        prices = CostArguments(gpu_hour_price={"*": 2}, max_cost=2)
        check_cost(Money(prices, {"L4": 3599}))
        with pytest.raises(RaybatchError, match=r"max_cost: 2\.00 USD is spent"):
            check_cost(Money(prices, {"L4": 3600}))

    def test_can_not_be_kept_without_a_price(self) -> None:
        error = reached(LimitArguments(), of=money(CostArguments(gpu_hour_price={"H10O": 2}, max_cost=2)))
        assert str(error) == (
            "max_cost: gpu_hour_price has no price for GPUs of type 'H100' (is 'H10O' meant for it?); add "
            "'H100' or '*'; the limit can't be kept without it."
        )
        assert error.failure_class is FailureClass.USER_ERROR

    def test_does_not_concern_cpus(self) -> None:
        prices = CostArguments(gpu_hour_price={"H100": 2}, max_cost=0.01)
        budget = Budget(LimitArguments(), 0, money(prices, gpus=0))
        budget.check(REPORTS, NOW)
        assert (budget.gpu_hours, budget.money.cost) == (0, 0)


def test_what_earlier_submissions_paid_is_in_parts_and_notes(tmp_path: Path) -> None:
    disk = LocalFolder(str(tmp_path))
    cut_off = RowFailure("length", "cut off", input_tokens=3, output_tokens=20)
    part(disk, [{}] * 4, [response("two words"), failure(), response("one"), cut_off])
    part(disk, [{}], first=4)
    part(disk, [{}], [response("a")], submission=1, run="_raybatch/parts/task/another-input")
    part(disk, [{}], [response("a")], run="_raybatch/parts/sibling/run")
    # Three prompt tokens each, and the words of the answers.
    paid = 3 + 2 + 3 + 1 + 3 + 20 + 3 + 1 + 3 + 1
    assert spent(LimitArguments(max_tokens_total=1), disk, "_raybatch/parts/task") == paid
    assert spent(LimitArguments(), disk, "_raybatch/parts/task") == 0
    # Of three jobs, one noted more than its parts have, one less, and one was killed without a part.
    notes = [
        JobRecord(run_token="t", submission_id=f"raybatch-x-{number}", began=0, at=0, input_tokens=tokens)
        for number, tokens in enumerate((paid, 2, 9))
    ]
    assert spent(LimitArguments(max_tokens_total=1), disk, "_raybatch/parts/task", notes) == paid + 3 + 1 + 9
