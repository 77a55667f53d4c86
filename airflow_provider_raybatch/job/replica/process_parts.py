# SPDX-License-Identifier: Apache-2.0
"""The parts that replicas' processes write, and the search for those that lost processes could not report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.input.chunk_rows import portions
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.reading import MOST_BYTES, DamagedPartError
from airflow_provider_raybatch.job.parts.reading import portions as portions_of
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.replica.shared_answers import SharedAnswer, shared_outputs
from airflow_provider_raybatch.job.request.key_array import KEY
from airflow_provider_raybatch.job.row import SKIPPED, RowFailure
from airflow_provider_raybatch.job.scheduling.messages import Begun
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals
from airflow_provider_raybatch.job.work import Job, own_columns
from airflow_provider_raybatch.storage.folder import Folder

_THREADS = 4


class WrittenPart(NamedTuple):
    """A part with its rows, and the output of each."""

    part: parts.Part
    rows: Sequence[Row]
    outputs: pa.StructArray


class PartWriter:
    """Numbers the parts of one process."""

    def __init__(self, job: Job, engine: Engine, process: str) -> None:
        self._job = job
        self._engine = engine
        self._process = process
        self._parts = 0
        self._names = [step.spec.step_name for step in job.questions]

    def decode(self, rows: Sequence[Row]) -> None:
        """Make results of what the engine gave."""
        has_result = (RowFailure, SharedAnswer)
        raw = [row for row in rows if row.result is not SKIPPED and not isinstance(row.result, has_result)]
        check = self._job.task.check
        for row, response in zip(raw, self._engine.decode([row.result for row in raw]), strict=True):
            request: Any = row.prepared.request
            row.result = check(response, request.each[0].sampling if request.each else request.sampling)

    def write(self, rows: Sequence[Row]) -> list[WrittenPart]:
        """One part, unless its rows are very large or of several types."""
        written = []
        for name, some, columns in self._cut(rows):
            outcomes = [
                row.prepared.outcome(row.position, self._named(row) if self._names[-1] else row.result)
                for row in some
            ]
            folder, task, first = self._job.folder, self._job.task, 0
            outputs = parts.outputs_of(task, [row.result for row in some])
            for part in parts.write_all(folder, name, columns, outcomes, task, outputs=outputs):
                stop = first + part.rows
                written.append(WrittenPart(part, some[first:stop], outputs.slice(first, part.rows)))
                first = stop
        return written

    def write_shared(self, rows: Sequence[Row]) -> list[WrittenPart]:
        """The same for rows that have the answer of an equal request."""
        written = []
        for name, some, columns in (
            one for origin, found in _by_origin(rows) for one in self._cut(found, f"{origin}-")
        ):
            arrays = {
                "ordinal": pa.array([row.position for row in some], pa.uint64()),
                "ok": pa.array([True] * len(some)),
                "key": pa.array([row.prepared.key for row in some], KEY),
                "id": pa.array([row.prepared.row_id for row in some], pa.string()),
                "origin": pa.array([row.result.origin for row in some], pa.string()),
                "paid_by": pa.array([row.result.paid_by for row in some], pa.string()),
                "failure": pa.nulls(len(some), parts.FAILURE),
                "output": (outputs := shared_outputs(some)),
            }
            stored = self._job.task.stored_inputs(columns)
            part = parts.write_arrays(self._job.folder, name, stored, arrays)
            written.append(WrittenPart(part, some, outputs))
        return written

    def _cut(self, rows: Sequence[Row], prefix: str = "") -> Iterator[tuple[str, list[Row], pa.Table]]:
        """Rows that one part can have, with its path, without what its content adds, and its columns."""
        ordered = sorted(rows, key=lambda row: row.position)
        for places, table in portions([(row.rows, row.place) for row in ordered]):
            self._parts += 1
            name = stem(self._job.part_folder, f"{prefix}{self._process}", f"{self._parts:06d}")
            yield name, [ordered[place] for place in places], own_columns(self._job, table)

    def _named(self, row: Row) -> Any:
        """A row's result; a failure says which of several steps has asked."""
        if not isinstance(row.result, RowFailure):
            return row.result
        return replace(row.result, step=f"{self._names[row.step]}.{row.result.step}")


@dataclass(frozen=True)
class Lost:
    """A process that ended without a last report, and its unreported parts as soon as they are known.

    :param found: parts with the ordinals of their rows, the number of the folder that each lies in, and the
        keys of its requests.
    """

    process: str
    actor: str
    begun: Begun | None
    found: Future[list[tuple[int, parts.Part, Ordinals, list[bytes]]]]


class LeftParts:
    """The unreported parts of one run's lost processes.

    They are listed in threads, since storage may be away for minutes, and the coordinator answers meanwhile.
    Until they are known, a lost process keeps its rows: they may be in these parts.

    :param folder: the destination.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch-left-parts")
        self._lost: list[Lost] = []

    def __bool__(self) -> bool:
        return bool(self._lost)

    def awaited_of(self, actor: str) -> bool:
        """Whether a process of this actor is lost, and its parts are not known yet."""
        return any(one.actor == actor for one in self._lost)

    def look_for(
        self, process: str, actor: str, begun: Begun | None, part_folders: Sequence[str], reported: Set[str]
    ) -> None:
        """Begin to list the parts of a lost process, but for those at `reported` paths.

        :param part_folders: of the job's steps.
        """
        found = self._threads.submit(_found, self._folder, part_folders, process, reported)
        self._lost.append(Lost(process, actor, begun, found))

    def known(self) -> Iterator[Lost]:
        """Lost processes whose parts have become known; each once."""
        done = [one for one in self._lost if one.found.done() and one.found.exception() is None]
        self._lost = [one for one in self._lost if one not in done]
        yield from done

    def check(self) -> None:
        """:raises StorageError: storage was away for too long to list parts."""
        for one in self._lost:
            if one.found.done():
                one.found.result()


def _by_origin(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """Rows whose answers one part can have, with where these come from."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.result.origin, []).append(row)
    for origin, some in found.items():
        sizes = [row.result.outputs.slice(row.result.place, 1).nbytes for row in some]
        for start, stop in portions_of(sizes, MOST_BYTES):
            yield origin, some[start:stop]


def stem(part_folder: str, process: str, number: int | str) -> str:
    """The path of a part of a process, without what its content adds."""
    return f"{part_folder}/{process}-{number}"


def _found(
    folder: Folder, part_folders: Sequence[str], process: str, reported: Set[str]
) -> list[tuple[int, parts.Part, Ordinals, list[bytes]]]:
    """Parts of a process that it has not reported; see :attr:`Lost.found`."""
    found = []
    for number, part_folder in enumerate(part_folders):
        begins = tuple(stem(part_folder, f"{prefix}{process}", "") for prefix in ("", *parts.FOUND))
        entries = [one for one in folder.list(part_folder) if one.path.startswith(begins)]
        for part in parts.listed(entries):
            if part.path not in reported:
                with contextlib.suppress(DamagedPartError):  # its rows are asked again
                    ordinals = parts.outcomes(folder, part)[0].astype(np.int64)
                    found.append((number, part, ordinals, parts.keys_in(folder, part)))
    return found
