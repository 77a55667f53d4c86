# SPDX-License-Identifier: Apache-2.0
"""The budgets of a job, and the error when one is used up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.arguments.limits import Limits
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.monitor.budget import Budget, spent
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import failure, part, response

NOW = 10_000.0
REPORTS = [
    ReplicaProgress("a", "n", input_tokens=600, output_tokens=100, seen=NOW),
    ReplicaProgress("b", "n", input_tokens=50, seen=NOW),
]


def reached(limits: Limits, spent_before: int = 0, gpus: int = 8, now: float = NOW) -> RaybatchError:
    with pytest.raises(RaybatchError) as caught:
        Budget(limits, spent_before, gpus, NOW - 3600).check(REPORTS, now)
    return caught.value


def test_max_tokens_total_counts_all_submissions() -> None:
    limits = Limits(max_tokens_total=1000)
    Budget(limits, 249, 8, NOW).check(REPORTS, NOW)
    error = reached(limits, spent_before=250)
    assert str(error) == (
        "max_tokens_total: 1,000 tokens are paid for, of 1,000 allowed; raise the "
        "limit and clear the task to go on."
    )
    assert error.failure_class is FailureClass.LIMIT_REACHED
    assert not error.failure_class.retryable


def test_gpu_hours_are_those_that_replicas_hold() -> None:
    """Planned replicas that still wait for nodes don't count."""
    limits = Limits(max_gpu_hours=8)
    Budget(limits, 0, 4, NOW - 3599).check(REPORTS, NOW)
    assert "8.00 GPU hours are used, of 8 allowed; raise" in str(reached(limits, gpus=4))
    Budget(limits, 0, 0, 0.0).check(REPORTS, NOW)  # CPUs cost no GPU hours
    gone = [replace(REPORTS[0], state="ended"), replace(REPORTS[1], seen=NOW - 61)]
    Budget(limits, 0, 4, 0.0).check(gone, NOW)
    Budget(limits, 0, 4, 0.0).check([], NOW)
    waiting = [replace(one, state="waiting") for one in REPORTS]  # for warm engines, which others have
    Budget(limits, 0, 4, 0.0).check(waiting, NOW)


def test_max_gpu_hours_add_up_as_replicas_come_and_go() -> None:
    budget = Budget(Limits(max_gpu_hours=100), 0, 4, NOW)
    for hour, held in enumerate([0, 1, 2, 1], start=1):
        now = NOW + hour * 3600
        budget.check([replace(one, seen=now) for one in REPORTS[:held]], now)
    assert budget.gpu_hours == 16


def test_a_replica_is_billed_until_it_has_ended() -> None:
    """It says so between two checks, and again until its process ends."""
    budget = Budget(Limits(max_gpu_hours=100), 0, 4, NOW - 3600)
    budget.check(REPORTS, NOW)
    for said, now in ((NOW + 900, NOW + 1800), (NOW + 3600, NOW + 3600)):
        budget.check([replace(one, state="ended", seen=said) for one in REPORTS], now)
    assert budget.gpu_hours == 2 * 4 * 1.25


def test_replicas_that_do_not_report_are_billed_as_planned() -> None:
    budget = Budget(Limits(max_gpu_hours=7), 0, 4, NOW - 3600, unseen=2)
    with pytest.raises(RaybatchError, match=r"8\.00 GPU hours are used, of 7"):
        budget.check([], NOW)


def test_what_earlier_submissions_paid_is_read_from_their_parts(tmp_path: Path) -> None:
    disk = LocalFolder(str(tmp_path))
    cut_off = RowFailure("length", "cut off", input_tokens=3, output_tokens=20)
    part(disk, [{}] * 4, [response("two words"), failure(), response("one"), cut_off])
    part(disk, [{}], first=4)
    part(disk, [{}], [response("a")], run="_raybatch/parts/task/another-input")
    part(disk, [{}], [response("a")], run="_raybatch/parts/sibling/run")
    # Three prompt tokens each, and the words of the answers.
    paid = 3 + 2 + 3 + 1 + 3 + 20 + 3 + 1 + 3 + 1
    assert spent(Limits(max_tokens_total=1), disk, "_raybatch/parts/task") == paid
    assert spent(Limits(), disk, "_raybatch/parts/task") == 0
