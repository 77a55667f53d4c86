# SPDX-License-Identifier: Apache-2.0
"""What the operators raise: one kind of exception for each group of failure classes.

Rules of a retry policy match these kinds; :mod:`airflow_provider_raybatch.retries` has a ready policy.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class RayBatchException(AirflowException):
    """A job failed, and another attempt may succeed: Airflow's `retries` sets how often the task is retried.

    :param message: one sentence.
    :param failure_class: what happened; callbacks and retry policies can read it.
    """

    def __init__(self, message: str, failure_class: FailureClass = FailureClass.INTERNAL) -> None:
        super().__init__(message)
        self.failure_class = failure_class


class RayBatchLostException(RayBatchException):
    """A node or the head that the job ran on was lost: the next attempt may start at once."""


class RayBatchUnavailableException(RayBatchException):
    """The cluster or a store gives no answer: the next attempt should wait."""


class RayBatchFailException(RayBatchException, AirflowFailException):
    """A job failed, and a retry would fail alike: Airflow fails the task at once."""

    def __init__(self, message: str, failure_class: FailureClass = FailureClass.USER_ERROR) -> None:
        super().__init__(message, failure_class)


class RayConnectionError(RayBatchFailException):
    """An Airflow connection can't be used; the message names the connection and the field."""


_KINDS: dict[FailureClass, type[RayBatchException]] = {
    FailureClass.NODE_LOST: RayBatchLostException,
    FailureClass.CLUSTER_LOST: RayBatchLostException,
    FailureClass.CLUSTER_UNREACHABLE: RayBatchUnavailableException,
    FailureClass.STORAGE: RayBatchUnavailableException,
}


def exception_kind(failure_class: FailureClass) -> type[RayBatchException]:
    """The kind of exception for a failure class."""
    if not failure_class.retryable:
        return RayBatchFailException
    return _KINDS.get(failure_class, RayBatchException)


def airflow_exception(failure_class: FailureClass, message: str) -> RayBatchException:
    """The exception for a failure: the class alone decides whether Airflow retries."""
    return exception_kind(failure_class)(message, failure_class)


def from_raybatch_error(error: RaybatchError) -> RayBatchException:
    """The exception for an error of the lower layers; its message is unchanged."""
    return airflow_exception(error.failure_class, str(error))
