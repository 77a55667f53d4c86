# SPDX-License-Identifier: Apache-2.0
"""What need not be paid for: rows whose request was answered before, or is asked by another row as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.prompt import FunctionPrompt
from airflow_provider_raybatch.job.ledger import parts
from airflow_provider_raybatch.job.ledger.found import Responses
from airflow_provider_raybatch.job.ledger.ledger import Rows
from airflow_provider_raybatch.job.ledger.parts import Origin, Part
from airflow_provider_raybatch.job.ledger.responses import LedgerResponses
from airflow_provider_raybatch.job.preflight.input_check import Source
from airflow_provider_raybatch.job.savings.adopting import Adopted, adopt, matched
from airflow_provider_raybatch.job.savings.keying import Mapper, RequestKeys, representatives, request_keys
from airflow_provider_raybatch.job.work import Job

_ROWS_PER_CHUNK = 4096


@dataclass(frozen=True)
class Savings:
    """Rows that no engine needs to see.

    :param rows: all of them, by ordinal.
    :param shared: of them, rows that get the answer of an equal request of this input, once it is there.
    :param found: what was found where, to be written before the engines start.
    :param followers: the rows of `shared` with their keys.
    :param repetitions: by ordinal, how many rows before it ask the same sampled request.
    """

    rows: Rows
    shared: Rows
    found: tuple[tuple[Adopted, Responses, Origin], ...] = ()
    followers: RequestKeys | None = None
    repetitions: Mapping[int, int] = field(default_factory=dict)

    @property
    def notice(self) -> str:
        """What is saved, as a sentence; empty if nothing is."""
        words: dict[Origin, str] = {
            "carried": "have an answer from an earlier input of this task",
            "stored": "have an answer in the response store",
        }
        told = [
            f"{len(adopted.ordinals):,} rows {words[origin]}"
            for adopted, _, origin in self.found
            if len(adopted.ordinals)
        ]
        if self.followers is not None and len(self.followers.ordinals):
            told.append(
                f"{len(self.followers.ordinals):,} rows ask what another row asks and share its answer"
            )
        return "; ".join(told)

    def adopt(self, job: Job, source: Source) -> list[Part]:
        """Write what was found. :raises StorageError: it can't be read or written."""
        chunks = source.chunks(_ROWS_PER_CHUNK)
        return [
            part
            for adopted, responses, origin in self.found
            for part in adopt(job, chunks, adopted, responses, origin)
        ]

    def fan_out(self, job: Job, source: Source, ledger: Sequence[Part]) -> list[Part]:
        """Give the followers the outcome of their request, be it a response or a failure.

        :param ledger: all parts of this input so far.
        :raises StorageError: it can't be read or written.
        """
        if self.followers is None or not len(self.followers.ordinals):
            return []
        written: list[Part] = []
        chunks = source.chunks(_ROWS_PER_CHUNK)
        left = self.followers
        for failures in (False, True):
            responses = LedgerResponses(job.folder, ledger, failures)
            adopted = matched(left.ordinals, left.keys, responses)
            written += adopt(job, chunks, adopted, responses, "duplicate")
            left = left.where(~np.isin(left.ordinals, adopted.ordinals))
        if len(left.ordinals) and isinstance(job.spec.prompt, FunctionPrompt):
            raise RaybatchError(
                f"prompt_function: {len(left.ordinals):,} rows asked what another row asks, until the "
                "function was called for that one again; make it give the same for the same row, or set "
                "deduplicate=False. The finished rows are kept.",
                FailureClass.USER_ERROR,
            )
        return written


def find_savings(
    job: Job,
    source: Source,
    settled: Rows,
    store: Responses | None,
    mapper: Mapper,
    say: Callable[[Phase], None],
) -> Savings:
    """Look for answers to the rows that are not settled.

    Keys are made only where they can save something, now or when the input changes, since that renders every
    row.

    :param store: the response store, if the job has one.
    :param mapper: applies a function to groups of chunks, in their order.
    :param say: told when keys are made, which takes its time with many rows.
    :raises StorageError: the source, a part or the store can't be read.
    """
    nothing = Savings(np.zeros(len(settled), np.bool_), np.zeros(len(settled), np.bool_))
    if settled.all():
        return nothing
    earlier = parts_of_task(job)
    run_folder = job.part_folder.rpartition("/")[0]
    elsewhere = any(not part.path.startswith(f"{run_folder}/") for part in earlier)
    if store is None and not elsewhere and not _may_repeat(job):
        return nothing
    message = f"Checking {source.rows:,} rows for reusable answers"
    say(Phase(phase="preflight", message=message))
    keys = request_keys(job, source, mapper)
    left = keys.where(~settled[keys.ordinals])
    found: list[tuple[Adopted, Responses, Origin]] = []
    places: list[tuple[Responses, Origin]] = []
    if earlier:
        places.append((LedgerResponses(job.folder, earlier), "carried"))
    if store is not None:
        places.append((store, "stored"))
    for responses, origin in places:
        adopted = matched(left.ordinals, left.keys, responses)
        found.append((adopted, responses, origin))
        left = left.where(~np.isin(left.ordinals, adopted.ordinals))
    stands = representatives(left) if job.spec.deduplicate else np.ones(len(left.ordinals), np.bool_)
    followers = left.where(~stands)
    rows, shared = nothing.rows, nothing.shared
    shared[followers.ordinals] = True
    rows |= shared
    for adopted, _, _ in found:
        rows[adopted.ordinals] = True
    # Also of rows that were found: an answer that can't be read after all is asked for under its own key.
    repeated = keys.where((keys.repetitions > 0) & ~settled[keys.ordinals])
    numbers = dict(zip(repeated.ordinals.tolist(), repeated.repetitions.tolist(), strict=True))
    return Savings(rows, shared, tuple(found), followers, numbers)


def parts_of_task(job: Job) -> list[Part]:
    """All parts of this task, of whatever input and question: equal requests have equal keys.

    A job that regenerates takes only those of its own run, which its question tells.

    :raises StorageError: they can't be listed.
    """
    submission = job.spec.submission
    if submission is None:
        return []
    found = parts.listed(job.folder.list(parts.task_folder(submission)))
    if job.spec.on_clear != "regenerate":
        return found
    question = job.part_folder.rpartition("/")[0].rpartition("-")[0]
    return [part for part in found if part.path.startswith(f"{question}-")]


def _may_repeat(job: Job) -> bool:
    """Whether it matters that requests are equal: greedy ones share an answer, others keep theirs apart.

    Apart also on a later day, when the input has changed: their numbers are part of what is written.
    """
    of_rows = job.spec.sampling_column is not None
    return job.spec.deduplicate or of_rows or not job.keyer.may_be_greedy
