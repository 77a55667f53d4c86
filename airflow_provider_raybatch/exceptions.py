# SPDX-License-Identifier: Apache-2.0
"""What the operators raise: the job's failure class, told to Airflow as a kind of exception.

The kinds are what rules of a retry policy match; :mod:`airflow_provider_raybatch.retries` has a ready one.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class RayBatchException(AirflowException):
    """A job did not deliver, and another attempt may: Airflow retries the task as often as its `retries` say.

    :param message: one sentence.
    :param failure_class: what happened; callbacks and retry policies can read it.
    """

    def __init__(self, message: str, failure_class: FailureClass = FailureClass.INTERNAL) -> None:
        super().__init__(message)
        self.failure_class = failure_class


class RayBatchLostException(RayBatchException):
    """What the job ran on went away, a node or the head: the next attempt may go on at once."""


class RayBatchUnavailableException(RayBatchException):
    """Something outside the job gives no answer, the cluster or a store: the next attempt had better wait."""


class RayBatchFailException(RayBatchException, AirflowFailException):
    """A job did not deliver, and no retry would change that: Airflow fails the task at once."""

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
    """The kind of exception that a failure class ends as."""
    if not failure_class.retryable:
        return RayBatchFailException
    return _KINDS.get(failure_class, RayBatchException)


def airflow_exception(failure_class: FailureClass, message: str) -> RayBatchException:
    """The exception for a failure: the class alone decides whether Airflow retries."""
    return exception_kind(failure_class)(message, failure_class)


def from_raybatch_error(error: RaybatchError) -> RayBatchException:
    """The exception for an error of the lower floors; its sentence stays as it is."""
    return airflow_exception(error.failure_class, str(error))
