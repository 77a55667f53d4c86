# SPDX-License-Identifier: Apache-2.0
"""From a listing to rows: each row is read once and whole, for any format, compression and chunk size."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input import survey as chunks_module
from airflow_provider_raybatch.job.input import text_rows
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.approved import AssertSentences
from tests.support.reading import ROWS, WRITERS, as_jsonl, as_parquet, listing_of, packed, read_all, text_of
from tests.support.s3_server import S3Server


@pytest.mark.parametrize(
    "name", ["jsonl", "jsonl.gz", "jsonl.zst", "csv", "csv.gz", "csv.zst", "parquet", "arrow"]
)
@pytest.mark.parametrize("limit", [None, 1, 137, 500, 10_000])
def test_each_row_is_read_once_and_whole(tmp_path: Path, name: str, limit: int | None) -> None:
    kind, _, packing = name.partition(".")
    content = WRITERS[kind](ROWS)
    (tmp_path / f"x.{name}").write_bytes(packed(content, packing) if packing else content)
    expected: list[Any] = [text_of(row) for row in ROWS] if kind == "csv" else ROWS
    for rows_per_chunk in (1, 50, 128, 1000):
        found, rows, table = read_all(listing_of(tmp_path), rows_per_chunk, limit)
        assert rows == expected[:limit]
        assert table == expected[:limit]
        assert [chunk.ordinal for chunk in found] == [
            sum(c.rows for c in found[:i]) for i in range(len(found))
        ]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
@pytest.mark.parametrize("positions", [[], [0], [31], [3, 30], list(range(1, 30)), list(range(32))])
def test_picked_rows_are_those_of_the_whole_chunk(tmp_path: Path, kind: str, positions: list[int]) -> None:
    folder = tmp_path / "day=7"
    folder.mkdir()
    (folder / f"x.{kind}").write_bytes(WRITERS[kind](ROWS))
    listing = listing_of(tmp_path)
    chunk = cut(survey(listing, None), 32, None)[1]
    assert chunk.rows == 32
    reader = Reader(listing, ["id", "day"], None)
    whole = reader.read(chunk).rows
    assert reader.rows(chunk, reader.content(chunk), positions).rows == [
        whole[position] for position in positions
    ]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_files_follow_each_other(tmp_path: Path, kind: str) -> None:
    for number, start in enumerate((0, 33, 33, 210)):
        part = ROWS[start : (33, 33, 210, 500)[number]]
        (tmp_path / f"{number}.{kind}").write_bytes(WRITERS[kind](part) if part else WRITERS[kind](ROWS)[:0])
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS).slice(0, 0), tmp_path / "1.parquet")
    _, rows, _ = read_all(listing_of(tmp_path), 40)
    assert [int(row["id"]) for row in rows if isinstance(row, dict)] == list(range(500))


@given(
    sizes=st.lists(st.integers(0, 40), max_size=5),
    rows_per_chunk=st.integers(1, 60),
    limit=st.one_of(st.none(), st.integers(1, 150)),
    text=st.booleans(),
)
def test_chunks_cover_each_row_once(
    sizes: list[int], rows_per_chunk: int, limit: int | None, text: bool
) -> None:
    pieces = [(start, min(8, size - start)) for size in sizes for start in range(0, size, 8)]
    surveyed = chunks_module.Surveyed(
        bounds=np.cumsum([0, *(-(-size // 8) for size in sizes)]),
        starts=np.array([start if text else 0 for start, _ in pieces], np.int64),
        sizes=np.array([rows for _, rows in pieces], np.int32),
        groups=np.array([start // 8 for start, _ in pieces if not text], np.int32),
        ends=np.array(sizes, np.int64),
        schemas=(None,) * len(sizes),
        contents=(None,) * len(sizes),
    )
    total = sum(sizes) if limit is None else min(limit, sum(sizes))
    found = cut(surveyed, rows_per_chunk, limit)
    assert [chunk.ordinal for chunk in found] == [sum(c.rows for c in found[:i]) for i in range(len(found))]
    assert sum(chunk.rows for chunk in found) == total
    assert all(chunk.rows > 0 for chunk in found)
    assert all(chunk.rows <= max(rows_per_chunk, 8) for chunk in found)
    if text:  # a row has a byte, and a limit leaves the last chunk its bytes
        assert all(chunk.rows == chunk.stop - chunk.start for chunk in found[:-1])
        assert all(chunk.group == -1 and chunk.rows <= chunk.stop - chunk.start for chunk in found[-1:])
    else:
        assert all(chunk.rows == chunk.stop - chunk.start <= rows_per_chunk for chunk in found)


def test_only_requested_columns_become_python_values(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(as_parquet(ROWS))
    _, rows, table = read_all(listing_of(tmp_path), columns=["text"])
    assert rows == [{"text": row["text"]} for row in ROWS]
    assert table == ROWS
    _, none, table = read_all(listing_of(tmp_path), columns=[])
    assert none == [{}] * 500
    assert table == ROWS


def test_readers_work_in_threads(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(as_parquet(ROWS))
    (tmp_path / "y.jsonl.gz").write_bytes(packed(as_jsonl(ROWS), "gz"))
    for name in ("x.parquet", "y.jsonl.gz"):
        listing = listing_of(tmp_path / name)
        reader = Reader(listing, None, None)
        found = cut(survey(listing, None), 10, None)
        with ThreadPoolExecutor(8) as pool:
            assert [row for rows in pool.map(reader.read, found) for row in rows.rows] == ROWS


class TestText:
    def test_byte_order_marks_blank_lines_and_windows_line_ends(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbf\r\na,b\r\n1,"x\r\ny"\r\n\r\n2,\r\n')
        assert read_all(listing_of(tmp_path / "x.csv"))[1] == [{"a": "1", "b": "x\r\ny"}, {"a": "2", "b": ""}]
        (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf\r\n{"a": 1}\r\n  \n\n{"a": 2}')
        assert read_all(listing_of(tmp_path / "x.jsonl"))[1] == [{"a": 1}, {"a": 2}]

    def test_a_bad_line_of_json_is_a_bad_row(self, tmp_path: Path) -> None:
        lines = [
            b'{"a": 1}',
            b'{"a": ',
            b"[1]",
            b"null",
            b'{"a": "\\ud800"}',
            b'{"a": "\xff"}',
            b'{"a": "\xed\xa0\x80"}',
            b'{"a": ' + b"[" * 100_000,
            b'{"a": "\\ud83d\\ude00"}',
        ]
        (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
        _, rows, table = read_all(listing_of(tmp_path))
        assert [row["a"] for row in rows if isinstance(row, dict)] == [1, "😀"]
        bad = [row for row in rows if isinstance(row, BadRow)]
        assert [row.reason.partition(" (")[0] for row in bad] == [
            "the line is not JSON",
            "the line is JSON, but a list instead of an object",
            "the line is JSON, but null instead of an object",
            *["the line is not JSON"] * 4,
        ]
        assert bad[0].text == '{"a": \n'
        assert all(len(row.text) <= 2000 for row in bad)
        assert [row["a"] for row in table] == ["1", *[None] * 7, '"😀"']  # JSON, until all chunks are known

    def test_a_bad_line_of_csv_is_a_bad_row(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_bytes(b'a,b\n1,2\n1\n1,2,3\n\xff,2\n1,"x\ny"\n1\r2,3\n4,5" pipe\n')
        _, rows, table = read_all(listing_of(tmp_path))
        reasons = [row if isinstance(row, dict) else re.split(r" \(|;", row.reason)[0] for row in rows]
        assert reasons == [
            {"a": "1", "b": "2"},
            "the row has 1 field, the header has 2",
            "the row has 3 fields, the header has 2",
            "the row is not UTF-8 text",
            {"a": "1", "b": "x\ny"},
            "the row is not CSV",
            {"a": "4", "b": '5" pipe'},
        ]
        assert rows[5].text == "1\r2,3"
        assert len(table) == 7
        assert table[1] == {"a": None, "b": None}

    def test_a_forgotten_quote_costs_its_own_rows_alone(self, tmp_path: Path) -> None:
        lines = [f'{number},"text {number}"' for number in range(30)]
        lines[7] = '7,"text 7'
        lines[20] = '20,"he said "hi" to me"'
        (tmp_path / "x.csv").write_text("id,text\n" + "\n".join(lines) + "\n")
        for rows_per_chunk in (1, 100):
            rows = read_all(listing_of(tmp_path), rows_per_chunk)[1]
            assert [row["id"] for row in rows if isinstance(row, dict)] == [
                str(number) for number in range(30) if number not in (7, 8, 20)
            ]
            assert all(row["text"] == f"text {row['id']}" for row in rows if isinstance(row, dict))
            bad = [row for row in rows if isinstance(row, BadRow)]
            assert [row.text for row in bad] == ['7,"text 7\n8,"text 8"', '20,"he said "hi" to me"']

    def test_a_key_that_an_object_has_twice_is_a_bad_row(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text(
            '{"a": 1, "b": {"c": 1}}\n{"a": 1, "a": 2}\n{"b": [{"c": 1, "c": 1}]}'
        )
        rows = read_all(listing_of(tmp_path))[1]
        assert isinstance(rows[0], dict)
        assert [row.reason for row in rows if isinstance(row, BadRow)] == [
            "an object in the line has the key 'a' twice",
            "an object in the line has the key 'c' twice",
        ]

    def test_very_long_fields_are_read(self, tmp_path: Path) -> None:
        long = "x" * 500_000
        (tmp_path / "x.csv").write_text(f"a\n{long}\n")
        assert read_all(listing_of(tmp_path))[1] == [{"a": long}]

    @pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "h.csv"])
    def test_files_without_rows(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"a,b\n" if name == "h.csv" else b"")
        listing = listing_of(tmp_path)
        surveyed = survey(listing, None)
        assert surveyed.rows == 0
        assert cut(surveyed, 10, None) == []
        (schema,) = surveyed.schemas
        assert (schema.names if schema else []) == (["a", "b"] if name == "h.csv" else [])

    def test_file_that_is_not_csv_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_sentences: AssertSentences
    ) -> None:
        def refused(content: bytes) -> None:
            monkeypatch.setattr(text_rows, "LONGEST_ROW", 100)
            monkeypatch.setattr("airflow_provider_raybatch.job.input.text_index._BLOCK", 16)
            path = tmp_path / "x.csv"
            path.write_bytes(content)
            survey(listing_of(path), None)

        assert_sentences(refused, PreflightError)


@pytest.mark.parametrize("name", ["jsonl", "csv", "csv.gz", "jsonl.zst", "parquet"])
def test_s3_reads_like_a_disk(s3_server: S3Server, name: str) -> None:
    kind, _, packing = name.partition(".")
    content = WRITERS[kind](ROWS)
    place = S3Folder(s3_server.new_bucket(), "in", s3_server.credentials)
    place.write(f"x.{name}", packed(content, packing) if packing else content)
    listing = resolve(InputArguments(source=[place.uri]), s3_server.credentials)
    _, rows, table = read_all(listing, 100, credentials=s3_server.credentials)
    assert rows == ([text_of(row) for row in ROWS] if kind == "csv" else ROWS)
    assert len(table) == 500
