# SPDX-License-Identifier: Apache-2.0
"""How many rows may fail, judged before, while and after the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job import parts
from airflow_provider_raybatch.job.request import RowFailure
from airflow_provider_raybatch.job.storage import Folder


@dataclass(frozen=True)
class Tolerance:
    """`fraction` of `rows` may fail."""

    fraction: float
    rows: int

    def exceeded(self, failed: int) -> bool:
        """Whether so many failed rows are too many, whatever becomes of the others."""
        return failed > self.fraction * self.rows

    def before(self, failures: Sequence[RowFailure], seen: int) -> None:
        """:raises RaybatchError: so many of the `seen` first rows make no request that the job must fail."""
        if self.exceeded(len(failures)):
            example = f"for example, {failures[0].step}: {failures[0].reason}"
            raise _too_many(
                f"{len(failures):,} of the first {seen:,} rows fail already, more than {self._allowed} "
                f"({example}); mend them or raise max_error_fraction."
            )

    def during(self, progress: Progress) -> None:
        """:raises RaybatchError: too many rows failed already; the others would be paid for in vain."""
        if self.exceeded(progress.errors):
            raise _too_many(
                f"{progress.errors:,} rows failed so far, more than {self._allowed}; the finished rows are "
                "kept for the next attempt."
            )

    def after(self, found: Sequence[parts.Part], folder: Folder) -> None:
        """The final count, now that it is known which failed rows another submission mended.

        :raises RaybatchError: too many rows failed; nothing is published.
        """
        failed = self.rows - parts.good_rows(folder, found, self.rows)
        if self.exceeded(failed):
            raise _too_many(
                f"{failed:,} rows failed, more than {self._allowed} ({parts.first_failure(folder, found)}); "
                "the finished rows are kept for the next attempt."
            )

    @property
    def _allowed(self) -> str:
        return f"{self.fraction:g} of {self.rows:,} rows allows"


def _too_many(what: str) -> RaybatchError:
    return RaybatchError(f"max_error_fraction: {what}", FailureClass.TOO_MANY_ERRORS)
