# SPDX-License-Identifier: Apache-2.0
"""What the parts of a task come to: which rows are done, and which keep failing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.parts.part import Part, listed, outcomes
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.in_order import in_order

RowMask: TypeAlias = npt.NDArray[np.bool_]
"""A flag for each row of the input, by ordinal: a byte a row, whatever is known of it."""


@dataclass(frozen=True)
class Ledger:
    """What parts say of the rows of an input.

    :param parts: with rows of this input (an earlier `limit` may have been larger).
    :param good: rows with a response.
    :param failures: how often each row failed, where it has no response.
    :param files: everything that the task keeps, of all inputs and questions, as it was listed.
    """

    parts: tuple[Part, ...]
    good: RowMask
    failures: npt.NDArray[np.uint16]
    files: tuple[Entry, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows need not be generated again."""
        return int(np.count_nonzero(self.good))

    def given_up(self, attempts: int) -> RowMask:
        """Rows that failed so often that they are not asked again."""
        given_up: RowMask = self.failures >= attempts
        return given_up


def look_back(folder: Folder, run_folder: str, rows: int) -> Ledger:
    """Read the ledger of a task, an input and a question.

    :param rows: rows of the input.
    :raises StorageError: a part can't be read.
    """
    files = folder.list(run_folder.rpartition("/")[0])
    own = [file for file in files if file.path.startswith(f"{run_folder}/")]
    return replace(add_up(folder, listed(own), rows), files=tuple(files))


def add_up(folder: Folder, parts: Sequence[Part], rows: int) -> Ledger:
    """What `parts` come to; only those with gaps or failures are opened.

    :raises StorageError: a part can't be read.
    """
    near = tuple(part for part in parts if part.first < rows)
    good: RowMask = np.zeros(rows, np.bool_)
    failures: npt.NDArray[np.uint16] = np.zeros(rows, np.uint16)
    for part in near:
        if part.is_solid:
            for first, last in part.runs:
                good[first : last + 1] = True
    ragged = [part for part in near if not part.is_solid]
    for ordinals, ok in in_order(lambda part: outcomes(folder, part), ragged):
        inside = ordinals < rows
        good[ordinals[inside & ok]] = True
        np.add.at(failures, ordinals[inside & ~ok], 1)
    failures[good] = 0
    return Ledger(near, good, failures)
