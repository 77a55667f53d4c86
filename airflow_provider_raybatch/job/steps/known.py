# SPDX-License-Identifier: Apache-2.0
"""Answers that steps had before: in parts of an earlier attempt, of a lost replica, or in the store."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.parts.part import Part, outcomes, read_columns
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, RecentReads
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, no_rows
from airflow_provider_raybatch.job.steps.columns import columns_so_far
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder

_COLUMNS = ("ordinal", "ok", "input", "output", "key")


@dataclass(frozen=True)
class KnownRows:
    """The answers of some rows up to a step.

    :param ordinals: of the rows, ascending.
    :param columns: of all steps so far, of exactly these rows.
    :param keys: of the requests of the step.
    """

    step: int
    ordinals: npt.NDArray[np.int64]
    columns: pa.Table
    keys: pa.ChunkedArray


class _Parts:
    """The parts of one step, and what each of them reaches."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = list(parts)
        self._first = np.array([part.first for part in self.parts], np.int64)
        self._last = np.array([part.last for part in self.parts], np.int64)

    def near(self, rows: Ordinals) -> list[Part]:
        """Those that may have some of these rows, which ascend."""
        reached = np.searchsorted(rows, self._first), np.searchsorted(rows, self._last, side="right")
        near = [self.parts[place] for place in np.flatnonzero(reached[0] < reached[1])]
        return [part for part in near if any(_has(rows, *run) for run in part.runs)]


def _has(rows: Ordinals, first: int, last: int) -> bool:
    return bool(np.searchsorted(rows, first) < np.searchsorted(rows, last, side="right"))


class KnownAnswers:
    """Which rows have answers of earlier steps.

    :param job: with the parts that were there before it.
    """

    def __init__(self, job: Job) -> None:
        self._folder = job.folder
        self._tasks = job.tasks[:-1]
        self._parts = [_Parts(some) for some in job.answers] or [_Parts([]) for _ in self._tasks]
        self._read = RecentReads[KnownRows](lambda known: known.columns.nbytes)
        self._lock = threading.Lock()
        """Of `_parts`."""

    def add(self, parts: Iterable[tuple[int, Part]]) -> None:
        """Parts of replicas that were lost, each with the number of its step."""
        added = list(parts)
        with self._lock:
            for step, known in enumerate(self._parts):
                own = [part for number, part in added if number == step]
                self._parts[step] = _Parts([*known.parts, *own]) if own else known

    def of(self, ordinals: Sequence[int]) -> list[KnownRows]:
        """What is known of some rows: each row once, with its answers up to the latest step."""
        left = np.unique(np.asarray(ordinals, dtype=np.int64))
        found: list[KnownRows] = []
        for step in reversed(range(len(self._tasks))):
            for part in self._parts[step].near(left):
                known = self._answers(step, part)
                places = np.flatnonzero(np.isin(known.ordinals, left)) if known is not None else no_rows()
                if known is not None and len(places):
                    some = known.ordinals[places]
                    at = pa.array(places)
                    found.append(KnownRows(step, some, known.columns.take(at), known.keys.take(at)))
                    left = left[~np.isin(left, some)]
        return found

    def _answers(self, step: int, part: Part) -> KnownRows | None:
        """The good rows of a part; ``None`` if it is damaged, so that its rows are asked again."""
        return self._read.get(part.path, lambda: self._opened(step, part))

    def _opened(self, step: int, part: Part) -> KnownRows | None:
        try:
            rows = read_columns(self._folder, part, _COLUMNS)
        except DamagedPartError:
            return None
        rows = rows.filter(rows["ok"]).sort_by("ordinal")
        ordinals, first = np.unique(rows["ordinal"].to_numpy().astype(np.int64), return_index=True)
        rows = rows.take(pa.array(first))
        return KnownRows(step, ordinals, columns_so_far(self._tasks[: step + 1], rows), rows["key"])


def last_keys(known: Iterable[KnownRows], ordinals: Sequence[int]) -> list[bytes | None]:
    """The key of each row's last request; ``None`` for a row that has made none."""
    found: dict[int, bytes] = {}
    for one in known:
        found |= zip(one.ordinals.tolist(), one.keys.to_pylist(), strict=True)
    return [found.get(ordinal) for ordinal in ordinals]


Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StepParts:
    """The parts of one step.

    :param task: what it asks and yields.
    :param own: folder of those that the job has written, relative to the destination.
    :param run: the job's, see :attr:`Submission.run_id`.
    """

    task: Task
    parts: Sequence[Part]
    own: str
    run: str

    @property
    def has_old(self) -> bool:
        """Whether some answers were there before the job."""
        return not all(map(self.is_generated, self.parts))

    def near(self, first: int, stop: int) -> StepParts:
        """Those that may have ordinals from `first` to before `stop`."""
        return replace(self, parts=[one for one in self.parts if one.first < stop and one.last >= first])

    def is_generated(self, part: Part) -> bool:
        """Whether the job has generated its answers."""
        return part.may_be_generated and part.path.startswith(f"{self.own}/")


@dataclass(frozen=True)
class OldAnswers:
    """The rows that have an old answer to a step.

    :param ordinals: of them, ascending.
    :param stored: whether the response store had it.
    :param shared: whether it is that of an equal request.
    :param paid: whether an earlier attempt of the run has paid for it.
    """

    ordinals: Ordinals
    stored: Mask
    shared: Mask
    paid: Mask

    def places(self, ordinals: Ordinals) -> tuple[Ordinals, Ordinals]:
        """The places of those of `ordinals` that are among them, and where they are here."""
        _, theirs, mine = np.intersect1d(ordinals, self.ordinals, assume_unique=True, return_indices=True)
        return theirs, mine


def old_answers(folder: Folder, step: StepParts) -> OldAnswers:
    """Read which rows the parts of a step have. What the job has generated itself is not old.

    A part that can't be read has none, since figures must not end a job whose rows are there.
    """
    old = [part for part in step.parts if not step.is_generated(part)]
    rows = [some for part in old for some in _rows(folder, part, step.run)]
    table = np.concatenate(rows) if rows else np.empty((0, 4), np.int64)
    _, first = np.unique(table[:, 0], return_index=True)
    table = table[first]
    own = [some for part in filter(step.is_generated, step.parts) for some in _good(folder, part)]
    if own:
        table = table[~np.isin(table[:, 0], np.concatenate(own))]
    return OldAnswers(table[:, 0], *(table[:, place].astype(np.bool_) for place in (1, 2, 3)))


def _good(folder: Folder, part: Part) -> Iterator[Ordinals]:
    """The ordinals of the good rows of a part."""
    with suppress(StorageError):
        ordinals, ok = outcomes(folder, part)
        yield ordinals[ok].astype(np.int64)


def _rows(folder: Folder, part: Part, run: str) -> Iterator[Ordinals]:
    """Ordinal, and whether it was stored, shared or paid for by the run, of each good row of a part."""
    with suppress(StorageError):
        rows = read_columns(folder, part, ["ordinal", "ok", "origin"])
        rows = rows.filter(rows["ok"])
        origins = rows["origin"].to_numpy()
        is_paid = (origins == "generated") & part.is_of(run)
        ordinals = rows["ordinal"].to_numpy().astype(np.int64)
        yield np.column_stack([ordinals, origins == "stored", origins == "duplicate", is_paid])
