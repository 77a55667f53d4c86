# SPDX-License-Identifier: Apache-2.0
"""Parts of a replica's flush: most rows are consecutive, and a few slow ones are far before them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.output.publish import Target, publish
from airflow_provider_raybatch.job.output.rows import ranges
from airflow_provider_raybatch.job.parts.ledger import add_up, look_back
from airflow_provider_raybatch.job.parts.part import Part, listed, read_between
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import ONE, failure, part, response

FLUSHES, ROWS, LATE = 24, 300, 12


class Counting(LocalFolder):
    """Counts the bytes that are read; a file that is opened counts whole."""

    bytes_read = 0
    files_read = 0

    def open(self, path: str, size: int | None = None) -> BinaryIO:
        self.bytes_read += Path(self.root, path).stat().st_size
        self.files_read += 1
        return super().open(path, size)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        self.bytes_read += length
        self.files_read += 1
        return super().read_range(path, start, length)


def flushes(folder: LocalFolder) -> list[Part]:
    """Write parts without their first five rows, which follow `LATE` flushes later."""
    made = []
    noise = np.random.default_rng(0)
    for number in range(FLUSHES + LATE):
        late = [(number - LATE) * ROWS + place for place in range(5)] if number >= LATE else []
        own = range(number * ROWS + 5, (number + 1) * ROWS) if number < FLUSHES else range(0)
        ordinals = [*late, *own]
        rows = [{"text": noise.bytes(2000).hex()} for _ in ordinals]
        if ordinals:
            made.append(part(folder, rows, ordinals=ordinals))
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Counting:
    return Counting(str(tmp_path))


def test_part_name_lists_runs_and_a_run_is_read_alone(folder: Counting) -> None:
    ordinals = [3, 4, *range(5000, 6000)]
    rows = [{"text": os.urandom(1000).hex()} for _ in ordinals]
    made = part(folder, rows, ordinals=ordinals)
    assert made.path.endswith(".3-4_5000-5999.1002.1002.parquet")
    assert made.runs == ((3, 4), (5000, 5999))
    assert (made.first, made.last) == (3, 5999)
    assert listed(folder.list()) == [made]
    assert read_between(folder, made, 0, 1000)["ordinal"].to_pylist() == [3, 4]
    assert folder.bytes_read < made.bytes / 4
    assert read_between(folder, made, 0, 10_000).num_rows == 1002


FEW = [1, 2, *range(1000, 1040, 2)]
DENSE = [9000, 20_000, *range(70_000, 70_010), *range(80_000, 80_010, 3), 500_000]
RUNS = [(9000, 9000), (20_000, 20_000), (70_000, 70_009), (80_000, 80_009), (500_000, 500_000)]


@pytest.mark.parametrize(
    ("ordinals", "runs"),
    [([9, 1, 5], [(1, 9)]), ([*FEW, *DENSE], [(1, 1038), *RUNS])],
    ids=["in no order", "many gaps"],
)
def test_runs_are_cut_at_the_largest_gaps(
    folder: Counting, ordinals: list[int], runs: list[tuple[int, int]]
) -> None:
    made = part(folder, [{"n": 1}] * len(ordinals), ordinals=ordinals)
    assert made.runs == tuple(runs)
    assert not made.is_solid
    file = pq.ParquetFile(io.BytesIO(folder.read(made.path)))
    assert file.num_row_groups == len(runs)


def test_solid_runs_are_not_opened(folder: Counting) -> None:
    parts = flushes(folder)
    folder.files_read = 0
    found = look_back(folder, "_raybatch/parts/task/run", FLUSHES * ROWS)
    assert found.good.all()
    assert folder.files_read == 0
    assert sum(one.rows for one in parts) == FLUSHES * ROWS


def test_failed_rows_of_a_part_with_runs_count(folder: Counting) -> None:
    made = part(folder, [{"n": 1}] * 3, [response(), failure(), response()], ordinals=[1, 2, 700])
    found = add_up(folder, [made], 800)
    assert np.flatnonzero(found.good).tolist() == [1, 700]
    assert np.flatnonzero(found.failures).tolist() == [2]


@pytest.mark.parametrize("rows", [ROWS, 8 * ROWS + 7])
def test_publishing_reads_little_more_than_the_parts(folder: Counting, rows: int) -> None:
    parts = flushes(folder)
    target = Target(folder, "data", "dead", "parquet", {}, ONE)
    folder.bytes_read = 0
    found = [publish(one, target) for one in ranges(parts, rows, FLUSHES * ROWS)]
    assert sum(one.rows for one in found) == FLUSHES * ROWS
    assert folder.bytes_read < 1.4 * sum(one.bytes for one in parts)
