# SPDX-License-Identifier: Apache-2.0
"""What the parts of a task come to: rows that are done, rows that keep failing, and tokens paid for."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.layout import RECORD, REPORT_DATA, REPORT_PAGE
from airflow_provider_raybatch.contract.run_numbers import JobRecord
from airflow_provider_raybatch.job.parts.part import Part, listed, outcomes, paid_tokens
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


def tokens_paid(written: Iterable[tuple[str, int]], records: Iterable[JobRecord]) -> int:
    """Tokens that submissions paid for: of each what it wrote, or what it noted if that is more.

    Parts lack the answers that a killed process had not written, and notes may be half a minute old.

    :param written: input and output tokens of parts, each with its submission's id.
    """
    of_parts, noted = Counter[str](), Counter[str]()
    for submission_id, tokens in written:
        of_parts[submission_id] += tokens
    for record in records:
        noted[record.submission_id] += record.input_tokens + record.output_tokens
    return sum((of_parts | noted).values())


def spent(limits: LimitArguments, folder: Folder, task_folder: str, records: Iterable[JobRecord] = ()) -> int:
    """Tokens that the task paid for in earlier submissions; 0 if they are not limited.

    :param task_folder: folder of all parts of the task, of any input and configuration.
    :param records: of all its jobs.
    :raises StorageError: the storage does not answer. Parts with a damaged footer count nothing.
    """
    if limits.max_tokens_total is None:
        return 0
    files = folder.list(task_folder)
    found = [*listed(files), *listed(files, damaged=True)]

    def paid(part: Part) -> tuple[str, int]:
        try:
            return part.submission_id, paid_tokens(folder, part)
        except DamagedPartError:
            return part.submission_id, 0

    return tokens_paid(in_order(paid, found), records)
