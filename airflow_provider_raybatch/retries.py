# SPDX-License-Identifier: Apache-2.0
"""A ready-made retry policy: how long Airflow waits before the next attempt, by what happened.

A task's `retries` bound all of it, and an error that no retry would change fails the task without a policy,
too. What is decided here is the pause. An attempt resumes: it pays for the missing rows alone.
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
    """Airflow's ``ExceptionRetryPolicy``, but the delays of some rules double with each try.

    :param rules: as Airflow's; the first one that matches counts.
    :param growing: the rules after these; their delays double, by the number of the try as with Airflow's
        `retry_exponential_backoff`.
    :param longest: no delay grows beyond it.
    """

    def __init__(self, rules: list[RetryRule], growing: list[RetryRule], longest: timedelta) -> None:
        super().__init__([*rules, *growing])
        self.growing = growing
        self.longest = longest

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """See Airflow's ``RetryPolicy``."""
        decision = super().evaluate(exception, try_number, max_tries, context)
        first = next((rule for rule in self.rules if rule.matches(exception)), None)
        if decision.retry_delay is None or not any(first is rule for rule in self.growing):
            return decision
        doublings = min(max(0, try_number - 1), 30)  # beyond that a timedelta would overflow
        delay = min(decision.retry_delay * 2**doublings, max(self.longest, decision.retry_delay))
        return RetryDecision.retry(delay, decision.reason)

    def serialize(self) -> dict[str, Any]:
        """See Airflow's ``RetryPolicy``."""
        return {
            **super().serialize(),
            "__type": type(self).__name__,
            "growing": len(self.growing),
            "longest": self.longest.total_seconds(),
        }

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> GrowingRetryPolicy:
        """See Airflow's ``RetryPolicy``."""
        rules = [RetryRule.deserialize(rule) for rule in data["rules"]]
        fixed = len(rules) - data["growing"]
        return cls(rules[:fixed], rules[fixed:], timedelta(seconds=data["longest"]))


def ray_batch_retry_policy(
    *rules: RetryRule,
    lost_delay: timedelta = timedelta(seconds=10),
    unavailable_delay: timedelta = timedelta(minutes=2),
    longest_delay: timedelta = timedelta(hours=1),
) -> GrowingRetryPolicy:
    """For ``retry_policy=`` of the operators of this package, and of tasks that use its hook or datasets.

    - What can't be changed by a retry fails at once.
    - A lost node or head is retried after `lost_delay`: what it takes to go on is there, or comes by itself.
    - A cluster or a store that does not answer is left alone for `unavailable_delay`, then for twice as long
      with each try, up to `longest_delay`.
    - All else has the task's own `retry_delay`, and its `retry_exponential_backoff`.

    :param rules: your own, which come first.
    :param lost_delay: default 10 seconds.
    :param unavailable_delay: default 2 minutes.
    :param longest_delay: default 1 hour.
    """
    own = [
        *rules,
        RetryRule(
            exception=[RayBatchFailException, SpecError, PreflightError],
            action=RetryAction.FAIL,
            reason="A retry would end the same way",
        ),
        RetryRule(
            exception=RayBatchLostException,
            retry_delay=lost_delay,
            reason="What the job ran on was lost; the finished rows are kept",
        ),
    ]
    growing = [
        RetryRule(
            exception=[RayBatchUnavailableException, _CLUSTER_UNREACHABLE],
            retry_delay=unavailable_delay,
            reason="The cluster or a store gave no answer; the finished rows are kept",
        ),
    ]
    return GrowingRetryPolicy(own, growing, longest_delay)
