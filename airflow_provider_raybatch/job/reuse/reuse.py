# SPDX-License-Identifier: Apache-2.0
"""What need not be paid for: rows whose request was answered before, or is asked by another row as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.prompt import FunctionPrompt
from airflow_provider_raybatch.job.input.source import ROWS_PER_CHUNK, Source
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.ledger import Ledger, Rows
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.reuse.cached_parts import Adopted, adopt, followed, matched
from airflow_provider_raybatch.job.reuse.duplicates import (
    Followers,
    Search,
    followers_of,
    read_search,
    repeats_of,
)
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.hits import Responses
from airflow_provider_raybatch.job.reuse.remaining import work
from airflow_provider_raybatch.job.reuse.row_keys import Mapper, request_keys
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.folder import Entry


@dataclass(frozen=True)
class Savings:
    """Rows that no engine needs to see.

    :param rows: all of them, by ordinal.
    :param shared: of them, rows that get the answer of an equal request of this input, once it is there.
    :param found: what was found where, to be written before the engines start.
    :param followers: the rows of `shared`, with the rows whose answer they get.
    :param repetitions: by ordinal, how many rows before it ask the same sampled request.
    :param search: what the next attempt need not find out again, where this one has found out something.
    """

    rows: Rows
    shared: Rows
    found: tuple[tuple[Adopted, Responses, Origin], ...] = ()
    followers: Followers | None = None
    repetitions: Mapping[int, int] = field(default_factory=dict)
    search: Search | None = None

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
        if self.followers is not None and len(self.followers):
            told.append(f"{len(self.followers):,} rows ask what another row asks and share its answer")
        return "; ".join(told)

    def adopt(self, job: Job, source: Source) -> list[Part]:
        """Write what was found. :raises StorageError: it can't be read or written."""
        written: list[Part] = []
        for adopted, responses, origin in self.found:
            written += adopt(job, source.chunks(ROWS_PER_CHUNK), adopted, responses, origin)
        if self.search is not None:
            self.search.write(job.folder, job.part_folder)
        return written

    def fan_out(self, job: Job, source: Source, ledger: Sequence[Part]) -> list[Part]:
        """Give the followers the outcome of their request, be it a response or a failure.

        :param ledger: all parts of this input so far.
        :raises StorageError: it can't be read or written.
        """
        if self.followers is None or not len(self.followers):
            return []
        written: list[Part] = []
        chunks = source.chunks(ROWS_PER_CHUNK)
        left = self.followers
        for failures in (False, True):
            responses = LedgerResponses(job.folder, ledger, failures)
            adopted = followed(left, responses)
            written += adopt(job, chunks, adopted, responses, "duplicate")
            left = left.where(~np.isin(left.ordinals, adopted.ordinals))
        if len(left) and isinstance(job.spec.prompt, FunctionPrompt):
            raise RaybatchError(
                f"prompt_function: {len(left):,} rows asked what another row asks, until the "
                "function was called for that one again; make it give the same for the same row, or set "
                "deduplicate=False. The finished rows are kept.",
                FailureClass.USER_ERROR,
            )
        return written


def find_savings(
    job: Job,
    source: Source,
    earlier: Ledger,
    settled: Rows,
    store: Responses | None,
    mapper: Mapper,
    say: Callable[[Phase], None],
) -> Savings:
    """Look for answers to the rows that are not settled.

    The keys of all rows are made only where they can save something, now or when the input changes, since
    that renders every row; and only once, since what comes of them is kept. A resume makes the keys of its
    missing rows, and only where there are answers that no earlier attempt has looked through.

    :param earlier: what earlier submissions did of the same input and requests.
    :param settled: rows that are not to be asked.
    :param store: the response store, if the job has one.
    :param mapper: applies a function to groups of work items, in their order.
    :param say: told when keys are made, which takes its time with many rows.
    :raises StorageError: the source, a part or the store can't be read.
    """
    nobody: Rows = np.zeros(len(settled), np.bool_)
    if settled.all():
        return Savings(nobody, nobody)
    run_folder = job.part_folder.rpartition("/")[0]
    here = [file for file in earlier.files if file.path.startswith(f"{run_folder}/")]
    elsewhere = [part for part in _usable(job, earlier.files) if not part.path.startswith(f"{run_folder}/")]
    search = read_search(job.folder, here, source.rows)
    found_out = search is None
    own = None
    if search is None:
        if store is None and not elsewhere and not _may_repeat(job):
            return Savings(nobody, nobody)
        say(_looking(source.rows))
        own = request_keys(job, work(source, ROWS_PER_CHUNK, nobody), mapper)
        search = Search(repeats_of(own), source.rows, frozenset())
    unsearched = search.unsearched(elsewhere)
    places: list[tuple[Responses, Origin]] = []
    if unsearched:
        places.append((LedgerResponses(job.folder, unsearched), "carried"))
        search = search.after(unsearched)
        found_out = True
    if store is not None:
        places.append((store, "stored"))
    if places and own is None:
        say(_looking(int(np.count_nonzero(~settled))))
        own = request_keys(job, work(source, ROWS_PER_CHUNK, settled), mapper)
    repeats, share = search.repeats, job.spec.deduplicate
    answered = followers_of(repeats, ~settled & share, earlier.good)
    rows = nobody.copy()
    rows[answered.ordinals] = True
    found: list[tuple[Adopted, Responses, Origin]] = []
    if own is not None:
        left = own.where(~(settled | rows)[own.ordinals])
        left = left.numbered(repeats.numbers_of(left.ordinals))
        for responses, origin in places:
            adopted = matched(left.ordinals, left.keys, responses)
            found.append((adopted, responses, origin))
            left = left.without(adopted.ordinals)
            rows[adopted.ordinals] = True
    missing = ~(settled | rows) & share
    followers = answered.and_others(followers_of(repeats, missing, missing))
    shared = nobody
    shared[followers.ordinals] = True
    rows |= shared
    # Also of rows that were found: an answer that can't be read after all is asked for under its own key.
    repeated = repeats.sampled[~settled[repeats.sampled]]
    numbers = dict(zip(repeated.tolist(), repeats.numbers_of(repeated).tolist(), strict=True))
    return Savings(rows, shared, tuple(found), followers, numbers, search if found_out else None)


def _looking(rows: int) -> Phase:
    return Phase(phase="preflight", message=f"Checking {rows:,} rows for reusable answers")


def parts_of_task(job: Job) -> list[Part]:
    """All parts of this task, of whatever input and question: equal requests have equal keys.

    A job that regenerates takes only those of its own run, which its question tells.

    :raises StorageError: they can't be listed.
    """
    submission = job.spec.submission
    if submission is None:
        return []
    return _usable(job, job.folder.list(layout.task_folder(submission)))


def _usable(job: Job, files: Sequence[Entry]) -> list[Part]:
    """The parts among `files` of this task whose answers the job may take."""
    found = parts.listed(files)
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
