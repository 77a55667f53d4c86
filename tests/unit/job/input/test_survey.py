# SPDX-License-Identifier: Apache-2.0
"""What the driver keeps of all files, however many rows they have."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.input import survey as module
from airflow_provider_raybatch.job.input.survey import cut, survey
from tests.support.reading import listing_of

FILES, ROWS = 10, 8_000


def test_memory_of_a_row_of_small_text_files(tmp_path: Path) -> None:
    """They can be cut every 8 rows, so that several replicas can share one."""
    for number in range(FILES):
        (tmp_path / f"{number}.jsonl").write_bytes(b'{"a": 1}\n' * ROWS)
    listing = listing_of(tmp_path)
    survey(listing, None)  # what is loaded once
    tracemalloc.start()
    try:
        surveyed = survey(listing, None)
        gc.collect()
        # Threads of other tests may allocate meanwhile.
        own = tracemalloc.Filter(True, f"{Path(module.__file__).parent}/*")
        found = tracemalloc.take_snapshot().filter_traces([own]).statistics("filename")
    finally:
        tracemalloc.stop()
    kept = sum(one.size for one in found)
    assert surveyed.rows == FILES * ROWS
    assert kept < 2.5 * FILES * ROWS
    chunks = cut(surveyed, 8, None)
    assert [len(chunks), {chunk.rows for chunk in chunks}] == [FILES * ROWS // 8, {8}]


def test_files_of_one_schema_share_it(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"a": [number], "b": ["x"]}), tmp_path / f"{number}.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "3.parquet")
    schemas = survey(listing_of(tmp_path), None).schemas
    assert [schema and schema.names for schema in schemas] == [["a", "b"]] * 3 + [["a"]]
    assert len(set(map(id, schemas))) == 2


def test_cells_are_joined_up_to_the_bytes_of_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jsonl").write_bytes((b'{"a": "%s"}\n' % (b"x" * 40)) * 45)
    surveyed = survey(listing_of(tmp_path), None)
    cell = surveyed.starts[1]
    for limit, rows in ((2 * cell, [16, 16, 13]), (2 * cell - 1, [8] * 4 + [13]), (1, [8] * 5 + [5])):
        monkeypatch.setattr(module, "CHUNK_BYTES", limit)
        assert [chunk.rows for chunk in cut(surveyed, 1000, None)] == rows
