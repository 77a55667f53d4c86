# SPDX-License-Identifier: Apache-2.0
"""What driver and replicas exchange: the job, its work items, finished parts, and what a run left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import SecretStr

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import EngineInfo
from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.input.survey import Chunk, Source
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.request.keys import Keyer, Repetitions
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import Folder

Item = TypeVar("Item")
Shared = TypeVar("Shared")
T = TypeVar("T")

ParallelMap: TypeAlias = Callable[[Callable[[Any, Any], T], Sequence[Any], Any], Iterable[T]]
"""Applies a function to items, each with what all of them share, in their order: here or over the cluster."""


def in_sequence(function: Callable[[Item, Shared], T], items: Sequence[Item], shared: Shared) -> Iterable[T]:
    """Item by item, in this process."""
    return (function(item, shared) for item in items)


@dataclass(frozen=True)
class WorkItem:
    """A chunk to do.

    :param skip: runs of positions in the chunk that need no request: the first, and one past the last.
    :param repetitions: position and number of each row that repeats the sampled request of earlier rows.
    """

    chunk: Chunk
    skip: tuple[tuple[int, int], ...] = ()
    repetitions: tuple[tuple[int, int], ...] = ()

    @property
    def positions(self) -> list[int]:
        """Positions in the chunk that need a request."""
        starts = [0, *(stop for _, stop in self.skip)]
        stops = [*(first for first, _ in self.skip), self.chunk.rows]
        return [place for start, stop in zip(starts, stops, strict=True) for place in range(start, stop)]

    @property
    def rows(self) -> int:
        """How many those are."""
        return self.chunk.rows - sum(stop - first for first, stop in self.skip)

    def repetitions_of(self, positions: Sequence[int]) -> dict[int, int]:
        """`repetitions` by place in `positions`."""
        numbers = dict(self.repetitions)
        return {place: numbers[position] for place, position in enumerate(positions) if position in numbers}


def work(
    source: Source, rows_per_chunk: int, resolved: RowMask, repetitions: Repetitions | None = None
) -> list[WorkItem]:
    """The remaining work: the chunks that have remaining rows.

    :param resolved: rows that need no request.
    :param repetitions: by ordinal, how many earlier rows make the same sampled request.
    """
    items = []
    for chunk in source.chunks(rows_per_chunk):
        ordinals = np.arange(chunk.ordinal, chunk.ordinal + chunk.rows)
        done = resolved[ordinals]
        if not done.all():
            repeated = (array.tolist() for array in (repetitions or Repetitions()).among(ordinals))
            items.append(WorkItem(chunk, _runs(done), tuple(zip(*repeated, strict=True))))
    return items


def _runs(flags: RowMask) -> tuple[tuple[int, int], ...]:
    """Where `flags` are true: the first position of each run, and one past its last."""
    borders = np.flatnonzero(np.diff(flags, prepend=False, append=False)).tolist()
    return tuple(zip(borders[::2], borders[1::2], strict=True))


@dataclass(frozen=True)
class CheckedModel:
    """What engines load.

    :param spec: as it was checked, with the version of the model.
    :param files: digest of the files of model and tokenizer.
    """

    spec: BatchInferenceSpec
    files: str = ""


@dataclass
class Done:
    """A finished work item: its parts, seconds by stage, and its replica's progress by then.

    :param answers: parts of earlier steps, each with the number of its step.
    :param keys: of requests whose answers equal ones may have, by the part that has these.
    """

    parts: list[Part]
    seconds: dict[str, float]
    report: ReplicaProgress
    answers: list[tuple[int, Part]] = field(default_factory=list)
    keys: list[tuple[Part, list[bytes]]] = field(default_factory=list)


@dataclass(frozen=True)
class Ran:
    """What a run left when it was over: the latest report of each replica, and all that was written.

    :param answers: parts of earlier steps, each with the number of its step.
    :param seconds: by stage.
    :param last_row: epoch seconds of the latest report with parts.
    """

    parts: Sequence[Part] = ()
    answers: Sequence[tuple[int, Part]] = ()
    reports: Sequence[ReplicaProgress] = ()
    engine: EngineInfo = field(default_factory=EngineInfo)
    seconds: Mapping[str, float] = field(default_factory=dict)
    last_row: float = 0.0


@dataclass(frozen=True)
class Job:
    """What every replica of a job gets. Ray Data exports it as text, so a secret is a ``SecretStr``.

    :param folder: the destination.
    :param part_folder: where this submission keeps its parts, relative to `folder`.
    :param before: of a job that asks in steps, those before the last one, each as a job of its own.
    :param answers: of each earlier step, the parts that were there before this job.
    """

    spec: BatchInferenceSpec
    listing: Listing
    folder: Folder
    part_folder: str
    keyer: Keyer
    credentials: AwsCredentials | None = None
    environment: dict[str, SecretStr] = field(default_factory=dict)
    before: tuple[Job, ...] = ()
    answers: tuple[tuple[Part, ...], ...] = ()

    @property
    def questions(self) -> tuple[Job, ...]:
        """What is asked about each row, in order; this job alone where that is one question."""
        return (*self.before, self)

    @property
    def first(self) -> Job:
        """What is asked first about each row."""
        return self.questions[0]

    @property
    def tasks(self) -> list[Task]:
        """What each question asks and yields, in order."""
        return [step.task for step in self.questions]

    @property
    def part_folders(self) -> list[str]:
        """The `part_folder` of each question, in order."""
        return [step.part_folder for step in self.questions]

    @property
    def run_folders(self) -> tuple[str, ...]:
        """The :attr:`run_folder` of each question, in order, with a slash at its end."""
        return tuple(f"{step.run_folder}/" for step in self.questions)

    @property
    def run_folder(self) -> str:
        """Where all submissions of the run keep their parts of the same requests, relative to `folder`."""
        return self.part_folder.rpartition("/")[0]

    @property
    def family(self) -> dict[str, Job]:
        """The earlier steps whose completions this step's answers are about, by name; else none."""
        asked = self.spec.question
        names = asked.family if asked.step.each is not None else ()
        return {name: self.before[asked.earlier.index(name)] for name in names}

    @property
    def swaps_adapters(self) -> bool:
        """Whether an engine holds fewer adapters at once than rows of a step choose among."""
        return any(step.spec.swaps_adapters for step in self.questions)

    @cached_property
    def task(self) -> Task:
        """What one row asks and yields."""
        return task_of(self.spec)


def own_columns(job: Job, columns: pa.Table) -> pa.Table:
    """Of a row's columns, those that parts of this step keep: all, or what earlier steps have added."""
    if job.spec.question.is_last:
        return columns
    made = {name for step in job.before for name in step.task.column_names}
    return columns.select([name for name in columns.column_names if name in made])


class Stopwatch:
    """Adds up seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, stage: str, start: float) -> None:
        """Count the time since `start` (``time.monotonic``)."""
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.monotonic() - start, 4)
