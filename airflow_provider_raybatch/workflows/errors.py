# SPDX-License-Identifier: Apache-2.0
"""The error of the workflow steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError, SpecError
from airflow_provider_raybatch.dataset import DatasetError
from airflow_provider_raybatch.storage.errors import StorageError


class WorkflowError(RaybatchError):
    """An argument or the data is not what a step needs; one sentence names it, its value and the remedy."""

    failure_class = FailureClass.USER_ERROR


@contextmanager
def reading() -> Iterator[None]:
    """Around what reads a dataset or a source: its error becomes one of a step, of the same class."""
    try:
        yield
    except (DatasetError, PreflightError, SpecError, StorageError) as error:
        raise WorkflowError(str(error), error.failure_class) from error
