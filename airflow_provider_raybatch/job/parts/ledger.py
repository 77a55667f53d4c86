# SPDX-License-Identifier: Apache-2.0
"""What the parts of a task come to: which rows are done, and which keep failing."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.layout import RECORD, REPORT_DATA, REPORT_PAGE
from airflow_provider_raybatch.job.parts.part import Part, listed, outcomes
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, read_part
from airflow_provider_raybatch.storage.file import Entry, in_order
from airflow_provider_raybatch.storage.folder import Folder

_READ_AT_ONCE = 4
_NOTES = (RECORD, REPORT_PAGE, REPORT_DATA)
"""Names of files that describe a task's jobs; no answer depends on them."""
RowMask: TypeAlias = npt.NDArray[np.bool_]
"""A flag for each row of the input, by ordinal."""


def read_only(rows: RowMask) -> RowMask:
    """The same flags, which are final."""
    rows.flags.writeable = False
    return rows


@dataclass(frozen=True)
class Ledger:
    """What parts say of the rows of an input.

    :param parts: with rows of this input (an earlier `limit` may have been larger).
    :param failures: how often each row without a response failed.
    :param files: all that the task keeps, of all inputs and configurations, as it was listed.
    :param damaged: parts that can't be read; their rows are not finished.
    """

    parts: tuple[Part, ...]
    good: RowMask
    failures: npt.NDArray[np.uint16]
    files: tuple[Entry, ...] = ()
    damaged: tuple[Part, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows need not be generated again."""
        return int(np.count_nonzero(self.good))

    def given_up(self, attempts: int) -> RowMask:
        """Rows that failed so often that they are not asked again."""
        given_up: RowMask = self.failures >= attempts
        return given_up


def look_back(folder: Folder, run_folder: str, rows: int) -> Ledger:
    """Read the ledger of one task, request configuration and input of so many rows."""
    listing = folder.list(run_folder.rpartition("/")[0])
    files = [file for file in listing if file.path.rpartition("/")[2] not in _NOTES]
    own = [file for file in files if file.path.startswith(f"{run_folder}/")]
    found = add_up(folder, listed(own), rows)
    return replace(found, files=tuple(files), damaged=(*listed(own, damaged=True), *found.damaged))


def add_up(folder: Folder, parts: Sequence[Part], rows: int) -> Ledger:
    """What `parts` come to; only those with gaps or failures are opened."""
    near = tuple(part for part in parts if part.first < rows)
    good: RowMask = np.zeros(rows, np.bool_)
    failures: npt.NDArray[np.uint16] = np.zeros(rows, np.uint16)
    for part in near:
        if part.is_solid:
            for first, last in part.runs:
                good[first : last + 1] = True
    ragged = [part for part in near if not part.is_solid]
    damaged: list[Part] = []
    for part, found in zip(ragged, in_order(lambda part: _outcomes(folder, part), ragged), strict=True):
        if found is None:
            damaged.append(part)
            continue
        ordinals, ok = found
        inside = ordinals < rows
        good[ordinals[inside & ok]] = True
        np.add.at(failures, ordinals[inside & ~ok], 1)
    # Few have failed, and memory that nothing is written to costs nothing.
    failed = np.flatnonzero(failures)
    failures[failed[good[failed]]] = 0
    good.flags.writeable = failures.flags.writeable = False
    return Ledger(tuple(part for part in near if part not in damaged), good, failures, (), tuple(damaged))


def mark_damaged(folder: Folder, run_folder: str) -> None:
    """Read all parts of a ledger, so that each damaged one is marked and one retry asks the rows of all."""

    def look(part: Part) -> None:
        with contextlib.suppress(DamagedPartError):
            read_part(folder, part.path, part.bytes, lambda file: deque(file.iter_batches(1024), 0), "all")

    deque(in_order(look, listed(folder.list(run_folder)), _READ_AT_ONCE), 0)


def _outcomes(folder: Folder, part: Part) -> tuple[npt.NDArray[np.uint64], RowMask] | None:
    try:
        return outcomes(folder, part)
    except DamagedPartError:
        return None
