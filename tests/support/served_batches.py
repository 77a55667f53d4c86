# SPDX-License-Identifier: Apache-2.0
"""Batches of the Batch API as a job sees them: documents in a folder, and the dataset below it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome, BatchProgress, Decision
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.layout import BATCH_DATASET, OUTCOME, PROGRESS
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.job.monitor.served_batch import BatchEndedError, BatchWatch
from airflow_provider_raybatch.job.phases import driver
from airflow_provider_raybatch.job.run import supervision
from airflow_provider_raybatch.job.work import Ran
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.openai_lines import IN_AND_OUT, ask, both_files, chat, line
from tests.support.whole_job import attempt, one_replica

LONG = 4e9
"""Epoch seconds of a window that no test sees the end of."""


@dataclass(frozen=True)
class Batch:
    """One batch.

    :param folder: with its documents.
    :param source: its input file.
    """

    folder: Folder
    source: str

    @property
    def dataset(self) -> Folder:
        """Where the job publishes."""
        if isinstance(self.folder, S3Folder):
            return replace(self.folder, prefix=f"{self.folder.prefix}/{BATCH_DATASET}")
        return LocalFolder(f"{self.folder.uri}/{BATCH_DATASET}")

    def decide(self, decision: Decision = "cancelled") -> None:
        """Decide its end, as the server does."""
        outcome = BatchOutcome(decision=decision, at=time.time(), nonce="server")
        self.folder.create(OUTCOME, outcome.model_dump_json().encode())

    def outcome(self) -> Decision | None:
        """Return how it ends, if that is decided."""
        if self.folder.head(OUTCOME) is None:
            return None
        return parse(BatchOutcome, self.folder.read(OUTCOME)).decision

    def progress(self) -> tuple[int, int, int]:
        """Return the counts that clients see: total, completed and failed."""
        counts = parse(BatchProgress, self.folder.read(PROGRESS)).counts
        return counts.total, counts.completed, counts.failed

    def run(self, number: int = 0, expires_at: float = LONG, **fields: Any) -> Summary:
        """Run a submission's job."""
        served = {"folder": self.folder.uri, "expires_at": expires_at}
        return attempt(self.dataset, number, self.source, **{**IN_AND_OUT, "served_batch": served, **fields})

    def ids(self) -> tuple[list[str], dict[str, str | None]]:
        """Return the ids of good answers; and those of error lines, with the code where none was asked."""
        good, bad = both_files(self.dataset)
        codes = {one["custom_id"]: one["error"] and one["error"]["code"] for one in bad}
        assert all((one["response"] is None) is (one["error"] is not None) for one in bad)
        assert len(codes) == len(bad)
        return [one["custom_id"] for one in good], codes


def a_batch(place: Folder, path: Path, lines: int = 20, different: int | None = None) -> Batch:
    """Make a batch of chats with the ids from 0 on.

    :param different: how many different questions they ask.
    """
    asked = [line(f"{number}", chat(f"question {number % (different or lines)}")) for number in range(lines)]
    return Batch(place, ask(path / "batch.jsonl", asked))


def quick_looks(patch: pytest.MonkeyPatch) -> None:
    """Let drivers look at their batch all the time."""
    patch.setattr(driver, "BatchWatch", partial(BatchWatch, interval=0.005))


def ended_midway(patch: pytest.MonkeyPatch, rows: int, end: Callable[[], object]) -> None:
    """Let the next replica do the first rows only, and end the batch then.

    :param rows: of the input, which it may do.
    :param end: ends the batch.
    """

    def run(job: Any, plan: Any, work: Any, tracker: Any, say: Any, check: Any) -> Ran:
        done = np.unpackbits(work.done_mask)
        done[rows:] = 1
        ran = one_replica(job, plan, replace(work, done_mask=np.packbits(done)))
        end()
        while True:
            time.sleep(0.001)
            try:
                check(ran.reports, tracker.update(ran.reports, 1, time.time()))
            except BatchEndedError:
                return ran

    patch.setattr(supervision, "run", run)
