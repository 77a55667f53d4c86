# SPDX-License-Identifier: Apache-2.0
"""What the operators raise: one kind of exception for each group of failure classes.

They are a branch of :class:`~airflow_provider_raybatch.contract.failures.RaybatchError`, which also catches
what the hook's client and datasets raise. Rules of a retry policy match these kinds;
:mod:`airflow_provider_raybatch.retries` has a ready policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class RayBatchException(RaybatchError, AirflowException):  # noqa: N818 - named like Airflow's
    """A job failed, and another attempt may succeed: Airflow's `retries` sets how often the task is retried.

    :param message: one sentence.
    :param failure_class: what happened; callbacks and retry policies can read it.
    """


class RayBatchLostException(RayBatchException):
    """A node or the head of the job's cluster was lost: the next attempt may start at once."""

    failure_class = FailureClass.NODE_LOST


class RayBatchUnavailableException(RayBatchException):
    """The cluster or a store gives no answer: the next attempt should wait."""

    failure_class = FailureClass.CLUSTER_UNREACHABLE


class RayBatchFailException(RayBatchException, AirflowFailException):
    """A job failed, and a retry would fail too: Airflow fails the task at once."""

    failure_class = FailureClass.USER_ERROR


class RayConnectionError(RayBatchFailException):
    """An Airflow connection can't be used; the message names the connection and the field."""


_KINDS: dict[FailureClass, type[RayBatchException]] = {
    FailureClass.NODE_LOST: RayBatchLostException,
    FailureClass.CLUSTER_LOST: RayBatchLostException,
    FailureClass.CLUSTER_UNREACHABLE: RayBatchUnavailableException,
    FailureClass.STORAGE: RayBatchUnavailableException,
}


def airflow_exception(error: RaybatchError) -> RayBatchException:
    """The exception for an error of the lower layers; its failure class decides whether Airflow retries."""
    if not error.failure_class.retryable:
        return RayBatchFailException(str(error), error.failure_class)
    return _KINDS.get(error.failure_class, RayBatchException)(str(error), error.failure_class)


@contextmanager
def for_airflow() -> Iterator[None]:
    """Turn errors of the lower layers into those that tell Airflow whether to retry."""
    try:
        yield
    except RayBatchException:
        raise
    except RaybatchError as error:
        # The sentence names its cause, except for an unexpected error.
        cause = error if error.failure_class is FailureClass.INTERNAL else None
        raise airflow_exception(error) from cause
