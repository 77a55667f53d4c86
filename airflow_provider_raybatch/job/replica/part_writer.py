# SPDX-License-Identifier: Apache-2.0
"""Makes parts of a replica's answers."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.input.chunk_rows import portions
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.replica.inflight import Row
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.work import Job


class PartWriter:
    """Numbers the parts of one process."""

    def __init__(self, job: Job, engine: Engine, process: str) -> None:
        self._job = job
        self._engine = engine
        self._process = process
        self._parts = 0

    def decode(self, rows: Sequence[Row]) -> None:
        """Make results of what the engine gave."""
        raw = [row for row in rows if not isinstance(row.result, RowFailure)]
        check = self._job.task.check
        for row, response in zip(raw, self._engine.decode([row.result for row in raw]), strict=True):
            row.result = check(response, row.prepared.request.sampling)  # type: ignore[union-attr]

    def write(self, rows: Sequence[Row]) -> list[parts.Part]:
        """One part, unless its rows are very large or of several types."""
        ordered = sorted(rows, key=lambda row: row.position)
        written = []
        for places, table in portions([(row.rows, row.place) for row in ordered]):
            self._parts += 1
            part_rows = [ordered[place] for place in places]
            outcomes = [row.prepared.outcome(row.position, row.result) for row in part_rows]
            name = stem(self._job.part_folder, self._process, f"{self._parts:06d}")
            written += parts.write_all(self._job.folder, name, table, outcomes, self._job.task)
        return written


def stem(part_folder: str, process: str, number: int | str) -> str:
    """The path of a part of a process, without what its content adds."""
    return f"{part_folder}/{process}-{number}"
