# SPDX-License-Identifier: Apache-2.0
"""Arrow IPC: streams and files of any batches and types, read batch by batch; and other files."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.arrow_batches import batches, read_batch
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.approved import AssertSentences
from tests.support.reading import ROWS, as_arrow, listing_of, read_all


@given(
    sizes=st.lists(st.integers(0, 300), max_size=6),
    is_file=st.booleans(),
    compression=st.sampled_from([None, "lz4", "zstd"]),
)
def test_each_batch_is_found_and_read(sizes: list[int], is_file: bool, compression: str | None) -> None:
    schema = pa.schema([
        ("n", pa.int64()),
        ("text", pa.string()),
        ("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("boxes", pa.list_(pa.struct([("x", pa.float32())]))),
        ("day", pa.date32()),
    ])
    written = [
        pa.record_batch(
            [
                range(size),
                ["ü" * (number % 900) for number in range(size)],
                [{"bytes": b"\0" * number, "path": None} for number in range(size)],
                [[{"x": 0.5}] * (number % 3) for number in range(size)],
                [datetime.date(2026, 1, 1)] * size,
            ],
            schema=schema,
        )
        for size in sizes
    ]
    sink = pa.BufferOutputStream()
    opened = pa.ipc.new_file if is_file else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with opened(sink, schema.with_metadata({"huggingface": "{}"}), options=options) as writer:
        for batch in written:
            writer.write_batch(batch)
    stream = io.BytesIO(sink.getvalue())
    found_schema, found = batches(stream)
    assert found_schema.equals(schema)
    assert [batch.rows for batch in found] == sizes
    for place in reversed(range(len(sizes))):
        assert read_batch(stream, found[place].at, found_schema).equals(written[place])


def test_types_and_values_reach_the_dataset(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(as_arrow(ROWS, is_file=True))
    (tmp_path / "y.arrow").write_bytes(as_arrow(ROWS))
    _, rows, table = read_all(listing_of(tmp_path), columns=["id"])
    assert rows == [{"id": row["id"]} for row in ROWS] * 2
    assert table == ROWS * 2


def _damaged(content: bytes, at: int, byte: bytes) -> bytes:
    return content[:at] + byte + content[at + 1 :]


def test_what_is_not_whole_arrow_is_refused(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    def refused(content: bytes) -> None:
        path = tmp_path / "x.arrow"
        path.write_bytes(content)
        survey(listing_of(path), None)

    assert_sentences(refused, PreflightError)


def test_dictionaries_are_refused(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()})
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(PreflightError, match="has columns with dictionaries, which Arrow keeps apart"):
        survey(listing_of(tmp_path), None)


def test_a_file_that_was_written_anew_is_noticed(tmp_path: Path) -> None:
    """As large as before, with other batches: where one was, another one goes on."""
    path = tmp_path / "x.arrow"
    path.write_bytes(as_arrow(ROWS))
    listing = listing_of(path)
    chunks = cut(survey(listing, None), 128, None)
    content = as_arrow(ROWS)
    path.write_bytes(content[:600] + content[:-600])
    with pytest.raises(StorageError, match="changed while the job ran; run the task again"):
        Reader(listing, None, None).read(chunks[1])
