# SPDX-License-Identifier: Apache-2.0
"""A ready-made retry policy: how long Airflow waits before the next attempt, by failure class.

A task's `retries` sets how often it is retried, and an error that no retry can change fails the task even
without a policy. The policy decides only the pause. An attempt resumes: it pays only for missing rows.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryDecision, RetryRule

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.exceptions import (
    RayBatchFailException,
    RayBatchLostException,
    RayBatchUnavailableException,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

_CLUSTER_UNREACHABLE = "airflow_provider_raybatch.cluster.jobs_api.errors.ClusterUnreachableError"


class GrowingRetryPolicy(ExceptionRetryPolicy):
    """Airflow's ``ExceptionRetryPolicy``, but the delay of the last rule doubles with each try.

    :param rules: as Airflow's; the first one that matches counts.
    :param longest: the delay does not grow beyond it.
    """

    def __init__(self, rules: list[RetryRule], longest: timedelta) -> None:
        super().__init__(rules)
        self.longest = longest

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """See Airflow's ``RetryPolicy``."""
        decision = super().evaluate(exception, try_number, max_tries, context)
        first = next((rule for rule in self.rules if rule.matches(exception)), None)
        if decision.retry_delay is None or first is not self.rules[-1]:
            return decision
        doublings = min(max(0, try_number - 1), 30)  # beyond that a timedelta would overflow
        delay = min(decision.retry_delay * 2**doublings, max(self.longest, decision.retry_delay))
        return RetryDecision.retry(delay, decision.reason)

    def serialize(self) -> dict[str, Any]:
        """See Airflow's ``RetryPolicy``."""
        own = {"__type": type(self).__name__, "longest": self.longest.total_seconds()}
        return {**super().serialize(), **own}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> GrowingRetryPolicy:
        """See Airflow's ``RetryPolicy``."""
        rules = [RetryRule.deserialize(rule) for rule in data["rules"]]
        return cls(rules, timedelta(seconds=data["longest"]))


def ray_batch_retry_policy(
    *rules: RetryRule,
    lost_delay: timedelta = timedelta(seconds=10),
    unavailable_delay: timedelta = timedelta(minutes=2),
    longest_delay: timedelta = timedelta(hours=1),
) -> GrowingRetryPolicy:
    """For ``retry_policy=`` of the operators of this package, and of tasks that use its hook or datasets.

    An error that a retry can't change fails at once. Where no rule matches, the task's own `retry_delay` and
    `retry_exponential_backoff` count.

    :param rules: your own, which come first.
    :param lost_delay: after a lost node or head, which the cluster replaces by itself; default 10 seconds.
    :param unavailable_delay: after a cluster or store gave no answer; it doubles with each try, default 2
        minutes.
    :param longest_delay: the most that it grows to, default 1 hour.
    """
    ready = [
        *rules,
        RetryRule(
            exception=[RayBatchFailException, SpecError, PreflightError],
            action=RetryAction.FAIL,
            reason="A retry would end the same way",
        ),
        RetryRule(
            exception=RayBatchLostException,
            retry_delay=lost_delay,
            reason="A node or the head was lost; the finished rows are kept",
        ),
        RetryRule(
            exception=[RayBatchUnavailableException, _CLUSTER_UNREACHABLE],
            retry_delay=unavailable_delay,
            reason="The cluster or a store gave no answer; the finished rows are kept",
        ),
    ]
    return GrowingRetryPolicy(ready, longest_delay)
