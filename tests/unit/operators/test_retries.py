# SPDX-License-Identifier: Apache-2.0
"""The ready-made retry policy: which failures it retries, and when."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import RetryAction, RetryRule

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, SpecError
from airflow_provider_raybatch.exceptions import RayBatchException, airflow_exception
from airflow_provider_raybatch.retries import GrowingRetryPolicy, ray_batch_retry_policy

LOST, UNAVAILABLE = timedelta(seconds=10), timedelta(minutes=2)
DELAYS = {
    FailureClass.NODE_LOST: LOST,
    FailureClass.CLUSTER_LOST: LOST,
    FailureClass.CLUSTER_UNREACHABLE: UNAVAILABLE,
    FailureClass.STORAGE: UNAVAILABLE,
}


def decided(error: BaseException, try_number: int = 1, policy: GrowingRetryPolicy | None = None) -> Any:
    decision = (policy or ray_batch_retry_policy()).evaluate(error, try_number, max_tries=5)
    return decision.action, decision.retry_delay


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_the_failure_class_decides(failure_class: FailureClass) -> None:
    action, delay = decided(airflow_exception(RaybatchError("It went wrong.", failure_class)))
    if not failure_class.retryable:
        assert action is RetryAction.FAIL
    elif failure_class in DELAYS:
        assert (action, delay) == (RetryAction.RETRY, DELAYS[failure_class])
    else:
        assert (action, delay) == (RetryAction.DEFAULT, None)


@pytest.mark.parametrize(
    ("error", "action"),
    [
        (SpecError("limit: it is 0."), RetryAction.FAIL),
        (ClusterUnreachableError("No answer."), RetryAction.RETRY),
        (ValueError("not ours"), RetryAction.DEFAULT),
    ],
)
def test_tasks_that_use_the_hook_may_have_it_too(error: BaseException, action: RetryAction) -> None:
    assert decided(error)[0] is action


def test_delay_after_silence_grows_with_each_try() -> None:
    error = airflow_exception(RaybatchError("No answer.", FailureClass.STORAGE))
    minutes = [decided(error, number)[1] / timedelta(minutes=1) for number in (1, 2, 3, 4, 5, 6, 500)]
    assert minutes == [2, 4, 8, 16, 32, 60, 60]


def test_delay_after_a_loss_does_not_grow() -> None:
    error = airflow_exception(RaybatchError("The node is gone.", FailureClass.NODE_LOST))
    assert decided(error, 7) == (RetryAction.RETRY, LOST)


def test_own_rules_come_first() -> None:
    rule = RetryRule(exception=RayBatchException, action=RetryAction.RETRY, retry_delay=timedelta(hours=2))
    policy = ray_batch_retry_policy(rule)
    for failure_class in (FailureClass.STORAGE, FailureClass.INTERNAL):
        error = airflow_exception(RaybatchError("x", failure_class))
        assert decided(error, 3, policy)[1] == timedelta(hours=2)


def test_a_long_first_delay_is_not_cut() -> None:
    policy = ray_batch_retry_policy(unavailable_delay=timedelta(hours=3))
    error = airflow_exception(RaybatchError("x", FailureClass.STORAGE))
    assert decided(error, 2, policy)[1] == timedelta(hours=3)


def test_retry_policy_survives_json() -> None:
    policy = ray_batch_retry_policy(longest_delay=timedelta(minutes=5))
    again = GrowingRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    for failure_class in FailureClass:
        error = airflow_exception(RaybatchError("x", failure_class))
        assert decided(error, 4, again) == decided(error, 4, policy)
