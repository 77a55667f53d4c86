# SPDX-License-Identifier: Apache-2.0
"""The errors of what opens, reads, writes or checks a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class DatasetError(RaybatchError):
    """The dataset is not what its manifest says, or can't be opened here."""

    failure_class = FailureClass.STORAGE


class UsageError(DatasetError):
    """An argument or the data is not what a call needs; one sentence names it, its value and the remedy."""

    failure_class = FailureClass.USER_ERROR


@contextmanager
def needing(package: str) -> Iterator[None]:
    """Around the import of a package that reading needs: its error says what to install."""
    try:
        yield
    except ImportError as error:
        extra = package if package in _OWN_EXTRA else "dataset"
        raise UsageError(
            f"{package}: it is not installed here ({error}); install airflow-provider-raybatch[{extra}].",
        ) from error


_OWN_EXTRA = frozenset({"pandas", "polars"})


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Around what reads the files of a dataset: pyarrow's errors become one sentence.

    :param uri: the folder of the files.
    """
    try:
        yield
    except (ValueError, OSError) as error:  # of pyarrow, which has both for damage
        raise DatasetError(f"files: {uri} can't be read ({error}); make the dataset again.") from error
