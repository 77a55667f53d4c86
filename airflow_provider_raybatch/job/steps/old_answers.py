# SPDX-License-Identifier: Apache-2.0
"""Which answers of a step were there before a job: earlier jobs had them, or the response store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.parts.part import Part, outcomes, read_columns
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder

Ordinals: TypeAlias = npt.NDArray[np.int64]
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
