# SPDX-License-Identifier: Apache-2.0
"""What earlier submissions of the task have done, and what is left."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job import parts
from airflow_provider_raybatch.job.preflight import Source
from airflow_provider_raybatch.job.replica import WorkItem
from airflow_provider_raybatch.job.storage import Folder


@dataclass(frozen=True)
class Earlier:
    """The ledger of this input and this question.

    :param parts: with rows of this input (an earlier `limit` may have been larger).
    :param done: ordinals of the good rows, sorted, below the number of rows.
    """

    parts: tuple[parts.Part, ...]
    done: npt.NDArray[np.uint64]

    @property
    def rows(self) -> int:
        """How many rows need not be generated again."""
        return len(self.done)


def look_back(folder: Folder, run_folder: str, rows: int) -> Earlier:
    """Read the ledger.

    :param rows: rows of the input.
    :raises StorageError: a part can't be read.
    """
    found, done = parts.scan(folder, run_folder)
    return Earlier(
        tuple(part for part in found if part.first < rows), done[: int(np.searchsorted(done, rows))]
    )


def work(source: Source, rows_per_chunk: int, done: npt.NDArray[np.uint64]) -> list[WorkItem]:
    """What is left to do: chunks without a finished row whole, others with the positions to skip.

    :param done: ordinals of the finished rows, sorted.
    """
    items = []
    for number, chunk in enumerate(source.chunks(rows_per_chunk)):
        low = int(np.searchsorted(done, chunk.ordinal))
        high = int(np.searchsorted(done, chunk.ordinal + chunk.rows))
        if high - low < chunk.rows:
            skip = tuple(int(ordinal) - chunk.ordinal for ordinal in done[low:high])
            items.append(WorkItem(number, chunk, skip))
    return items
