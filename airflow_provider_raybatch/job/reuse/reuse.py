# SPDX-License-Identifier: Apache-2.0
"""Rows that need no engine: their response is cached, or an equal row generates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.events import Notice, Phase
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Source
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.ledger import Ledger, RowMask
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.repetitions import Repetitions
from airflow_provider_raybatch.job.reuse.cached_parts import matched_by_leader
from airflow_provider_raybatch.job.reuse.duplicates import (
    Followers,
    Repeats,
    Search,
    followers_of,
    forget_search,
    read_search,
    repeats_of,
)
from airflow_provider_raybatch.job.reuse.earlier_answers import EarlierAnswers, last_of
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.hits import CachedRows, Responses
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.resolver import CachedResponses, ReuseResolver, add_followers
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys, ranges_for, request_keys
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.work import Job, ParallelMap, work
from airflow_provider_raybatch.storage.entry import Entry


@dataclass(frozen=True)
class ReusePlan:
    """Rows that need no engine.

    :param rows: all of them, by ordinal.
    :param shared: those of them that get the outcome of an equal row of this input.
    :param found: cached responses.
    :param followers: the rows of `shared`, with the rows whose outcome they get; by the latter.
    :param repetitions: by ordinal, how many earlier rows make the same sampled request.
    :param search: new findings to keep for the next attempt; ``None`` if there are none.
    """

    rows: RowMask
    shared: RowMask
    found: tuple[CachedResponses, ...] = ()
    followers: Partitions[Followers] = field(default_factory=lambda: Partitions(Followers, 1))
    repetitions: Repetitions = field(default_factory=Repetitions)
    search: Search | None = None

    @property
    def notice(self) -> str:
        """What is reused, as a sentence; empty if nothing is."""
        words: dict[Origin, str] = {
            "carried": "from an earlier input of this task",
            "stored": "in the response store",
        }
        clauses = [
            f"{count_of(len(one.rows), 'row has', 'rows have')} an answer {words[one.origin]}"
            for one in self.found
            if len(one.rows)
        ]
        if len(self.followers):
            asking = count_of(len(self.followers), "row asks", "rows ask")
            clauses.append(f"{asking} what another row asks, for the same answer")
        return "; ".join(clauses)

    def write_parts(self, job: Job, source: Source) -> list[Part]:
        """Write the cached responses as parts of this submission.

        If a response that equal rows wait for is gone, one of them is asked, and the others follow it.
        """
        chunks, written = source.chunks(ROWS_PER_CHUNK), list[Part]()
        lost = Partitions(RequestKeys, ranges_for(source.rows))
        for parts_of_one, gone in (pair for one in self.found for pair in one.write(job, chunks)):
            written += parts_of_one
            # Sampled requests are numbered, so equal keys mean one response.
            own = RequestKeys(gone.ordinals, gone.keys, np.ones(len(gone), np.bool_))
            lost.add(own, key_array.range_of(own.keys, lost.number))
        if job.spec.deduplicate:
            self._follow(lost)
        if self.search is not None:
            self.search.write(job.folder, job.part_folder)
        return written

    def _follow(self, lost: Partitions[RequestKeys]) -> None:
        for some in lost:
            followers = followers_of(repeats_of(some.where(np.argsort(some.ordinals))))
            add_followers(self.followers, followers, len(self.rows))
            self.shared[followers.ordinals] = True

    def fan_out(
        self,
        job: Job,
        source: Source,
        ledger: Sequence[Part],
        parallel_map: ParallelMap[RequestKeys] | None = None,
    ) -> list[Part]:
        """Give the followers the outcome of their leader, a response or a failure.

        What a key is made of is read again when its row is asked: images, and what a user's function
        returns. So a leader may have failed without a key, or asked something else. Its followers get its
        outcome if their keys, made again, equal its own.

        :param ledger: all parts of this input so far.
        :param parallel_map: makes keys again; without it, such followers get no outcome.
        :raises RaybatchError: a follower asks something else than its leader now; the next attempt asks it.
        """
        good, failed = (LedgerResponses(job.folder, ledger, failures) for failures in (False, True))
        written, left = self._share(job, source, self.followers, good)
        more, left = self._share(job, source, left, failed)
        written += more
        if not len(left) or parallel_map is None:
            return written
        more, left = self._share(job, source, _asking_now(job, source, left, parallel_map), good)
        written += more
        more, _ = self._share(job, source, left, failed, any_key=True)
        written += more
        if rows := len(self.followers) - sum(part.rows for part in written):
            forget_search(job.folder, job.run_folder)
            raise _asks_something_else(job, rows)
        return written

    @staticmethod
    def _share(
        job: Job,
        source: Source,
        followers: Partitions[Followers],
        responses: LedgerResponses,
        any_key: bool = False,
    ) -> tuple[list[Part], Partitions[Followers]]:
        """Write the outcomes that leaders have in `responses`, and return the other followers."""
        found = CachedResponses(Partitions(CachedRows, followers.number), responses, "duplicate")
        others = Partitions(Followers, followers.number)
        for some in followers:
            cached = matched_by_leader(some, responses, any_key)
            found.add(cached, source.rows)
            add_followers(others, some.where(~np.isin(some.ordinals, cached.ordinals)), source.rows)
        written = [part for some, _ in found.write(job, source.chunks(ROWS_PER_CHUNK)) for part in some]
        return written, others


def _asking_now(
    job: Job, source: Source, followers: Partitions[Followers], parallel_map: ParallelMap[RequestKeys]
) -> Partitions[Followers]:
    """The followers that still ask what their leader asks, by keys that are made again."""
    others: RowMask = np.ones(source.rows, np.bool_)
    for some in followers:
        others[some.ordinals] = others[some.leaders] = False
    (own,) = request_keys(job, work(source, ROWS_PER_CHUNK, others), 1, parallel_map)
    found = Partitions(Followers, followers.number)
    for some in followers:
        add_followers(found, some.asking_now(own), source.rows)
    return found


def _asks_something_else(job: Job, rows: int) -> RaybatchError:
    said = f"{count_of(rows, 'row')} asked what another row asks, until"
    if job.spec.prompt_function is not None:
        return RaybatchError(
            f"prompt_function: {said} the function was called for that one again; make it give the same for "
            "the same row, or set deduplicate=False.",
            FailureClass.USER_ERROR,
        )
    return RaybatchError(
        f"images: {said} the image of that one changed; the next attempt asks them.", FailureClass.STORAGE
    )


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
    no_rows: RowMask = np.zeros(len(resolved), np.bool_)
    own_folder = f"{job.run_folder}/"
    own_files = [file for file in earlier.files if file.path.startswith(own_folder)]
    elsewhere = [part for part in _usable(job, earlier.files) if not part.path.startswith(own_folder)]
    kept = None if resolved.all() else read_search(job.folder, own_files, source.rows)
    may_reuse = store is not None or bool(elsewhere)
    if resolved.all() or (kept is None and not may_reuse and not _may_repeat(job)):
        return ReusePlan(no_rows, no_rows)
    number = ranges_for(source.rows)

    def keys_without(skip: RowMask, sought: str) -> Partitions[RequestKeys]:
        rows = count_of(int(np.count_nonzero(~skip)), "row")
        emit(Phase(phase="preflight", message=f"checking {rows} for {sought}"))
        return request_keys(job, work(source, ROWS_PER_CHUNK, skip), number, parallel_map)

    own, search = None, kept
    if search is None:
        own = keys_without(no_rows, "reusable answers" if may_reuse else "equal requests")
        search = Search(all_repeats(own), source.rows, frozenset())
    caches: list[CachedResponses] = []
    if unsearched := [part for part in elsewhere if part.path not in search.searched]:
        carried = _earlier_answers(job, unsearched, number, emit)
        caches.append(CachedResponses(Partitions(CachedRows, number), carried, "carried"))
        search = replace(search, searched=search.searched | {part.path for part in unsearched})
    if store is not None:
        caches.append(CachedResponses(Partitions(CachedRows, number), store, "stored"))
    if caches and own is None:
        own = keys_without(resolved, "reusable answers")
    resolver = ReuseResolver(source.rows, resolved, earlier.good, caches, job.spec.deduplicate)
    resolver.resolve(search.repeats, own if caches else None)
    return ReusePlan(
        resolver.rows,
        resolver.shared,
        tuple(caches),
        resolver.followers,
        resolver.repetitions,  # also of cached rows: if a response is gone, its row is asked
        None if search is kept else search,
    )


def with_kept_followers(job: Job, files: Sequence[Entry], answered: RowMask) -> ReusePlan:
    """The rows that get the outcome of an answered row, by what earlier attempts have kept of equal requests.

    It needs no keys, so neither the model nor the rows.

    :param files: of one input and one set of requests.
    :param answered: rows with an outcome, by ordinal.
    """
    no_rows: RowMask = np.zeros(len(answered), np.bool_)
    search = read_search(job.folder, files, len(answered)) if job.spec.deduplicate else None
    if search is None:
        return ReusePlan(no_rows, no_rows)
    resolver = ReuseResolver(len(answered), answered, answered, (), share=True)
    resolver.resolve(search.repeats, None)
    return ReusePlan(resolver.rows, resolver.shared, (), resolver.followers)


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
    if not job.earlier_steps or job.spec.submission is None:
        return [(job, parts_of_task(job))]
    files = job.folder.list(layout.task_folder(job.spec.submission))
    folders = [(step, f"{step.run_folder}/") for step in job.steps]
    return [
        (step, [part for part in _usable(step, files) if part.path.startswith(folder)])
        for step, folder in folders
    ]


def earlier_answers(job: Job, files: Sequence[Entry], store: ResponseStore | None) -> EarlierAnswers | None:
    """Where answers may be to requests that arise while the job runs; ``None`` where there are none.

    :param job: its last step; and `files`, all that the task keeps.
    """
    found = {part for step in job.steps for part in _usable(step, files)}
    if not found and store is None:
        return None
    own = tuple(f"{step.run_folder}/" for step in job.steps)
    ordered = sorted(found, key=lambda part: (part.path.startswith(own), part.path))
    place = None if store is None else store.folder
    return EarlierAnswers(job.folder, tuple(last_of(ordered)), place, job.spec.reuse_max_age)


def _usable(job: Job, files: Sequence[Entry]) -> list[Part]:
    """The parts among `files` whose responses the job may reuse."""
    found = parts.listed(files)
    if job.spec.on_clear != "regenerate":
        return found
    requests_folder = job.run_folder.rpartition("-")[0]
    return [part for part in found if part.path.startswith(f"{requests_folder}-")]


def _may_repeat(job: Job) -> bool:
    """Whether equal requests matter: greedy ones share a response, sampled ones are numbered.

    The numbers are part of the keys, so they must be the same on a later day when the input has changed.
    """
    return job.spec.deduplicate or job.spec.samples_by_row or not job.keyer.may_be_greedy


def _earlier_answers(
    job: Job, searched: Sequence[Part], ranges: int, emit: Callable[[Notice], None]
) -> LedgerResponses:
    def miss(path: str) -> None:
        text = f"reuse: {job.folder.uri}/{path} is damaged; its responses are paid for again."
        emit(Notice(level="warning", message=text))

    return LedgerResponses(job.folder, searched, ranges=ranges, damaged=miss)
