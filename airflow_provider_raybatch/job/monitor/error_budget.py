# SPDX-License-Identifier: Apache-2.0
"""How many rows may fail, checked before, during and after generation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.failures.public_reasons import counted
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.row import RowFailure

_TELLING_ROWS = 1000
_FAILING_EVERYWHERE = 0.95


@dataclass(frozen=True)
class Tolerance:
    """How many of `rows` rows may fail by `limits`: a share, a number, or the stricter of both.

    :param given_up: rows that failed too often in earlier submissions to be tried again.
    :param all_may_fail: where no limit is given, as a failed row is an answer, too.
    """

    limits: LimitArguments
    rows: int
    given_up: int = 0
    all_may_fail: bool = False

    @property
    def allowed(self) -> int:
        """Failed rows that are still acceptable."""
        share = self._share_of_rows
        return share if self.limits.max_errors is None else min(share, self.limits.max_errors)

    def exceeded(self, failed: int) -> bool:
        """Whether this many failed rows are too many."""
        return failed > self.allowed

    def before(self, failures: Sequence[tuple[int, RowFailure]], seen: int, remedy: str = "") -> None:
        """Judge the first rows of the input.

        :param failures: each with the row's position.
        :param seen: how many rows were read.
        :param remedy: for the message, beside mending rows and allowing more failures.
        :raises RaybatchError: too many rows fail.
        """
        if not self.exceeded(len(failures)):
            return

        def what(shows_rows: bool) -> str:
            return (
                f"{len(failures):,} of the first {count_of(seen, 'row')} fail already, more than "
                f"{self._rule}: {counted(failures, shows_rows=shows_rows)}; mend them"
                f"{f', {remedy},' if remedy else ''} or raise {self._field}."
            )

        raise self._too_many(what(shows_rows=True), what(shows_rows=False))

    def during(self, reports: Sequence[ReplicaProgress]) -> None:
        """:raises RaybatchError: too many rows failed, or nearly all rows so far."""
        failed, done = sum(report.errors for report in reports), sum(report.written for report in reports)
        if self.exceeded(self.given_up + failed):
            killers = sum(report.killers for report in reports)
            if killers:
                raise RaybatchError(
                    f"{self._field}: {killers:,} of {count_of(failed, 'failed row')} killed the engine each "
                    f"time, more than {self._rule}; take them out, or raise {self._field}.",
                    FailureClass.POISON_ROW,
                )
            before = f" and {self.given_up:,} in earlier submissions" if self.given_up else ""
            raise self._too_many(f"{count_of(failed, 'row')} failed so far{before}, more than {self._rule}.")
        share = failed / done if done else 0.0
        if done >= _TELLING_ROWS and share >= _FAILING_EVERYWHERE > self._share:
            raise self._too_many(f"{failed:,} of the first {count_of(done, 'row')} failed, nearly all.")

    def after(self, answered: int) -> None:
        """:raises RaybatchError: too many of the final rows have no answer; nothing is published."""
        failed = self.rows - answered
        if self.exceeded(failed):
            raise self._too_many(f"{count_of(failed, 'row')} failed, more than {self._rule}.")

    def while_published(self, failed: int, when: str, describe: Callable[[], str]) -> None:
        """Check the count after columns were made of the responses.

        :param when: in the message.

        :param describe: describes the failed rows; called only if there are too many.
        :raises RaybatchError: too many rows failed; nothing is published.
        """
        if self.exceeded(failed):
            raise self._too_many(
                f"{count_of(failed, 'row')} failed once {when}, more than {self._rule}; {describe()}."
            )

    @property
    def _share(self) -> float:
        if self.limits.max_error_fraction is not None:
            return self.limits.max_error_fraction
        return 0.0 if self.limits.max_errors is None and not self.all_may_fail else 1.0

    @property
    def _share_of_rows(self) -> int:
        # Of doubles, 0.29 * 100 is less than 29.
        return int(Fraction(str(self._share)) * self.rows)

    @property
    def _field(self) -> str:
        return "max_error_fraction" if self.allowed == self._share_of_rows else "max_errors"

    @property
    def _rule(self) -> str:
        if self._field == "max_errors":
            return f"the {self.allowed:,} that max_errors allows"
        allowed = f"the {self.allowed:,} of {count_of(self.rows, 'row')}"
        if self.limits.max_error_fraction is None:
            return f"{allowed} that may fail where {self._field} is not set"
        return f"{allowed} that {self._field}={self._share:g} allows"

    def _too_many(self, what: str, public: str | None = None) -> RaybatchError:
        return RaybatchError(
            f"{self._field}: {what}",
            FailureClass.TOO_MANY_ERRORS,
            public=None if public is None else f"{self._field}: {public}",
        )
