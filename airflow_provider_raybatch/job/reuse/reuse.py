# SPDX-License-Identifier: Apache-2.0
"""Rows that need no engine: their response is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow.compute as pc

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.events import Notice, Phase
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Source
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.ledger import Ledger, RowMask, read_only
from airflow_provider_raybatch.job.parts.part import Origin, Part, read_columns
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.repeats import (
    CachedResponses,
    Repeats,
    ReuseResolver,
    Search,
    read_search,
    repeats_of,
)
from airflow_provider_raybatch.job.reuse.row_keys import (
    CachedRows,
    RequestKeys,
    Responses,
    ranges_for,
    request_keys,
)
from airflow_provider_raybatch.job.reuse.store.data import StoredFile
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.work import Job, ParallelMap, work
from airflow_provider_raybatch.storage.file import Entry, in_order
from airflow_provider_raybatch.storage.folder import Folder

_MOST_KEYS = 20_000_000
"""Of 12 bytes each in the coordinator. What is beyond is asked again."""


@dataclass(frozen=True)
class EarlierAnswers:
    """Where they lie.

    :param folder: the destination.
    :param parts: of the task, those of the run last.
    :param store: folder of the response store, if the job has one; older answers than `max_age` seconds are
        not found.
    """

    folder: Folder
    parts: Sequence[Part] = ()
    store: Folder | None = None
    max_age: float | None = None

    def places(self) -> Iterator[tuple[Part | StoredFile, Keys]]:
        """The keys of good answers, by the file that has them; of a key that comes twice, the last counts.

        A file that can't be read has none.

        :raises StorageError: the storage gives no answer.
        """
        left = _MOST_KEYS - sum(part.ok for part in self.parts)
        if self.store is not None and left > 0:
            yield from ResponseStore(self.store, lambda notice: None, self.max_age).keys(left)
        with_answers = [part for part in self.parts if part.ok]
        yield from zip(with_answers, in_order(self._keys, with_answers), strict=True)

    def _keys(self, part: Part) -> Keys:
        with suppress(DamagedPartError):
            table = read_columns(self.folder, part, ["ok", "key"])
            table = table.filter(pc.and_(table["ok"], pc.is_valid(table["key"])))
            return key_array.from_arrow(table["key"])
        return np.empty(0, "S16")


def last_of(parts: Sequence[Part]) -> list[Part]:
    """As many of some parts as the coordinator takes; those that come last."""
    places = np.cumsum([part.ok for part in reversed(parts)])
    return list(parts[len(parts) - int(np.searchsorted(places, _MOST_KEYS, side="right")) :])


@dataclass(frozen=True)
class ReusePlan:
    """Rows that need no engine.

    :param rows: all of them, by ordinal.
    :param found: cached responses.
    :param repetitions: by ordinal, how many earlier rows make the same sampled request.
    :param search: new findings to keep for the next attempt; ``None`` if there are none.
    """

    rows: RowMask
    found: tuple[CachedResponses, ...] = ()
    repetitions: Repetitions = field(default_factory=Repetitions)
    search: Search | None = None

    @property
    def notice(self) -> str:
        """What is reused, as a sentence; empty if nothing is."""
        words: dict[Origin, str] = {
            "carried": "from an earlier input of this task",
            "stored": "in the response store",
            "duplicate": "of an equal row",
        }
        return "; ".join(
            f"{count_of(len(one.rows), 'row has', 'rows have')} an answer {words[one.origin]}"
            for one in self.found
            if len(one.rows)
        )

    def write_parts(self, job: Job, source: Source) -> list[Part]:
        """Write the cached responses as parts of this submission. Rows whose response is gone are asked."""
        chunks = source.chunks(ROWS_PER_CHUNK)
        written = [part for one in self.found for some in one.write(job, chunks) for part in some]
        if self.search is not None:
            self.search.write(job.folder, job.part_folder)
        return written


def plan_reuse(
    job: Job,
    source: Source,
    earlier: Ledger,
    resolved: RowMask,
    store: Responses | None,
    parallel_map: ParallelMap[RequestKeys],
    emit: Callable[[Phase | Notice], None],
) -> ReusePlan:
    """Find responses for the rows that are not resolved.

    :param earlier: what earlier submissions finished of the same input and requests.
    :param resolved: rows that need no request.
    :param store: the response store, if the job has one.
    :param parallel_map: applies a function to groups of work items.
    :param emit: called when keys are made, which is slow for many rows, and when a part is damaged.
    """
    no_rows = read_only(np.zeros(len(resolved), np.bool_))
    own_folder = f"{job.run_folder}/"
    own_files = [file for file in earlier.files if file.path.startswith(own_folder)]
    elsewhere = [part for part in _usable(job, earlier.files) if not part.path.startswith(own_folder)]
    of_equal_rows = earlier.parts if earlier.rows and job.spec.deduplicate and _may_be_greedy(job) else ()
    kept = None if resolved.all() else read_search(job.folder, own_files, source.rows)
    is_numbered = _may_sample(job)
    may_reuse = store is not None or bool(elsewhere or of_equal_rows)
    if resolved.all() or (kept is None and not may_reuse and not is_numbered):
        return ReusePlan(no_rows)
    number = ranges_for(source.rows)

    def keys_without(skip: RowMask, sought: str) -> Partitions[RequestKeys]:
        rows = count_of(int(np.count_nonzero(~skip)), "row")
        emit(Phase(phase="preflight", message=f"checking {rows} for {sought}"))
        return request_keys(job, work(source, ROWS_PER_CHUNK, skip), number, parallel_map)

    own, search = None, kept
    if search is None:
        repeats = Partitions(Repeats, number)
        if is_numbered:
            own = keys_without(no_rows, "reusable answers" if may_reuse else "equal requests")
            repeats = all_repeats(own)
        search = Search(repeats, source.rows, frozenset())
    caches: list[CachedResponses] = []
    if of_equal_rows:
        shared = _earlier_answers(job, of_equal_rows, number, emit)
        caches.append(CachedResponses(Partitions(CachedRows, number), shared, "duplicate"))
    if unsearched := [part for part in elsewhere if part.path not in search.searched]:
        carried = _earlier_answers(job, unsearched, number, emit)
        caches.append(CachedResponses(Partitions(CachedRows, number), carried, "carried"))
        search = replace(search, searched=search.searched | {part.path for part in unsearched})
    if store is not None:
        caches.append(CachedResponses(Partitions(CachedRows, number), store, "stored"))
    if caches and own is None:
        own = keys_without(resolved, "reusable answers")
    is_new = search is not kept and (is_numbered or bool(search.searched))
    resolver = ReuseResolver(source.rows, resolved, caches)
    resolver.resolve(search.repeats, own if caches else None)
    return ReusePlan(
        read_only(resolver.rows),
        tuple(caches),
        resolver.repetitions,  # also of cached rows: if a response is gone, its row is asked
        search if is_new else None,
    )


def all_repeats(own: Partitions[RequestKeys]) -> Partitions[Repeats]:
    """The repeats of an input.

    :param own: the keys of all of its rows, not yet numbered, in ranges.
    """
    found = Partitions(Repeats, own.number)
    for place, some in enumerate(own):
        repeats = repeats_of(some)
        found.add(repeats, np.full(len(repeats), place))
    return found


def caches_of(
    job: Job, files: Sequence[Entry], store: Responses | None, rows: int, emit: Callable[[Notice], None]
) -> list[tuple[Origin, Responses]]:
    """Where responses to requests of a job may be, besides its own ledger.

    :param files: all that the task keeps.
    :param rows: of the input.
    """
    own_folder = f"{job.run_folder}/"
    found: list[tuple[Origin, Responses]] = []
    if elsewhere := [part for part in _usable(job, files) if not part.path.startswith(own_folder)]:
        found.append(("carried", _earlier_answers(job, elsewhere, ranges_for(rows), emit)))
    if store is not None:
        found.append(("stored", store))
    return found


def parts_of_task(job: Job) -> list[Part]:
    """All parts of this task, of any input and configuration: equal requests have equal keys.

    A job that regenerates takes only parts of its own run; the configuration digest in the path includes it.
    """
    submission = job.spec.submission
    if submission is None:
        return []
    return _usable(job, job.folder.list(layout.task_folder(submission)))


def parts_of_steps(job: Job) -> list[tuple[Job, list[Part]]]:
    """All parts of this task whose answers are those of a step, by steps.

    Where a job has several, those of other configurations are left out: which columns they have is not known.
    """
    if not job.before or job.spec.submission is None:
        return [(job, parts_of_task(job))]
    files = job.folder.list(layout.task_folder(job.spec.submission))
    return [
        (step, [part for part in _usable(step, files) if part.path.startswith(folder)])
        for step, folder in zip(job.questions, job.run_folders, strict=True)
    ]


def earlier_answers(job: Job, files: Sequence[Entry], store: ResponseStore | None) -> EarlierAnswers | None:
    """Where answers may be to requests that arise while the job runs; ``None`` where there are none.

    :param job: its last step; and `files`, all that the task keeps.
    """
    found = {part for step in job.questions for part in _usable(step, files)}
    if not found and store is None:
        return None
    ordered = sorted(found, key=lambda part: (part.path.startswith(job.run_folders), part.path))
    place = None if store is None else store.folder
    return EarlierAnswers(job.folder, tuple(last_of(ordered)), place, job.spec.reuse_max_age)


def _usable(job: Job, files: Sequence[Entry]) -> list[Part]:
    """The parts among `files` whose responses the job may reuse."""
    found = parts.listed(files)
    if job.spec.on_clear != "regenerate":
        return found
    requests_folder = job.run_folder.rpartition("-")[0]
    return [part for part in found if part.path.startswith(f"{requests_folder}-")]


def _may_be_greedy(job: Job) -> bool:
    """Whether equal requests may share an answer."""
    return job.spec.rows_decide or job.keyer.may_be_greedy


def _may_sample(job: Job) -> bool:
    """Whether requests are numbered that rows repeat.

    The numbers are part of the keys, so they must be the same on a later day when the input has changed.
    """
    return not job.spec.pools and (job.spec.rows_decide or not job.keyer.may_be_greedy)


def _earlier_answers(
    job: Job, searched: Sequence[Part], ranges: int, emit: Callable[[Notice], None]
) -> LedgerResponses:
    def miss(path: str) -> None:
        text = f"reuse: {job.folder.uri}/{path} is damaged; its responses are paid for again."
        emit(Notice(level="warning", message=text))

    return LedgerResponses(job.folder, searched, miss, ranges)
