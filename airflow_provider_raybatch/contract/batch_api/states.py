# SPDX-License-Identifier: Apache-2.0
"""The state of a batch: a pure function of the documents that are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_provider_raybatch.contract.batch_api.records import (
    BatchEnd,
    BatchOutcome,
    BatchProgress,
    BatchRecord,
    Decision,
    RequestCounts,
    Started,
)

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

_BEFORE_THE_END: dict[Decision, Status] = {
    "completed": "finalizing",
    "expired": "finalizing",
    "cancelled": "cancelling",
    "limit_reached": "cancelling",
    "failed": "failed",
}
"""What a decided batch is until its files are there."""


@dataclass(frozen=True)
class BatchState:
    """A batch, as far as its documents tell.

    :param triggered: whether Airflow has its DAG run.
    :param progress: the last one that was written.
    """

    record: BatchRecord
    triggered: bool = False
    started: Started | None = None
    outcome: BatchOutcome | None = None
    progress: BatchProgress | None = None
    ended: BatchEnd | None = None

    @property
    def status(self) -> Status:
        """OpenAI's word for it."""
        if self.ended is not None:
            return "cancelled" if self.ended.decision == "limit_reached" else self.ended.decision
        if self.outcome is not None:
            return _BEFORE_THE_END[self.outcome.decision]
        return "validating" if self.started is None else "in_progress"

    @property
    def is_over(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.ended is not None

    @property
    def counts(self) -> RequestCounts:
        """Of its requests, in the end or so far."""
        if self.ended is not None:
            return self.ended.counts
        if self.progress is not None:
            return self.progress.counts
        return RequestCounts(total=0 if self.started is None else self.started.total)
