# SPDX-License-Identifier: Apache-2.0
"""Whoever has a presigned URL's signature can open the file: no message about a source shows one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.input import http, opening
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import cut, survey
from airflow_provider_raybatch.job.preflight import input_check
from airflow_provider_raybatch.job.preflight.column_check import check_types
from tests.support.reading import as_jsonl, as_parquet, listing_of
from tests.support.sources import look_at_source
from tests.support.specs import spec
from tests.support.web import Answer, Web

SECRET = "?X-Amz-Credential=AK/2026/s3,x;(y)'z'&X-Amz-Signature=s3cret"
HOST = "https://hub.example"


def read(listing: Listing) -> None:
    reader = Reader(listing, None, None)
    for chunk in cut(survey(listing, None), 1000, None):
        reader.read(chunk)


def damaged() -> bytes:
    content = bytearray(as_parquet([{"a": number} for number in range(5000)]))
    content[100:600] = bytes(500)
    return bytes(content)


def two_columns_of_a_name() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), sink)
    return bytes(sink.getvalue())


CONTENTS: dict[str, tuple[str, bytes]] = {
    "no extension": ("x.data", b"{}"),
    "not parquet": ("x.parquet", b"PAR1 or not"),
    "damaged": ("x.parquet", damaged()),
    "two columns of a name": ("x.parquet", two_columns_of_a_name()),
    "not gzip": ("x.jsonl.gz", b"not gzip"),
    "not zstd": ("x.csv.zst", b"not zstd"),
    "not text": ("x.csv", b"\xff\xfe\n1\n"),
    "not csv": ("x.csv", b'a,"b\n'),
    "an open quote": ("x.csv", b'a\n"b\nc\nd'),
    "two columns of a name in csv": ("x.csv", b"a,a\n1,2\n"),
    "half a row": ("x.jsonl", b'{"a": \n'),
}


def presigned(web: Web, name: str, *answers: Answer) -> str:
    return web.serve(f"{HOST}/{name}", *answers) + SECRET


def assert_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(RaybatchError) as caught:
        call()
    assert f"{HOST}/x" in str(caught.value)
    assert not [part for part in ("s3cret", "Credential", "AK/2026") if part in str(caught.value)]


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_file_that_can_not_be_read(web: Web, content: tuple[str, bytes]) -> None:
    name, body = content
    url = presigned(web, name, Answer(body))
    assert_refused(lambda: (read(listing_of(url)), look(url)))


def look(url: str) -> None:
    made = spec(source=[url], prompt="{row.a}")
    source = look_at_source(made)
    input_check.sample(made, source, None)


def test_files_that_do_not_go_together(web: Web) -> None:
    first = presigned(web, "x.jsonl", Answer(b'{"a": 1}\n'))
    second = presigned(web, "x.csv", Answer(b"a\n1\n"))
    assert_refused(lambda: resolve(spec(source=[first, second]), None))
    assert_refused(lambda: resolve(spec(source=[first, first]), None))


def test_a_file_that_changed_or_has_no_room(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    url = presigned(web, "x.jsonl", Answer(as_jsonl([{"a": 1}]), headers={"ETag": '"1"'}))
    listing = listing_of(url)
    (file,) = listing.files
    assert_refused(lambda: read(replace(listing, files=(replace(file, version='"2"'),))))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    opening._spool.cache_clear()
    monkeypatch.setattr(http, "fetch", full)
    assert_refused(lambda: read(listing))


def test_a_column_that_no_dataset_holds(web: Web) -> None:
    files = listing_of(presigned(web, "x.jsonl", Answer(b"{}\n"))).files
    assert_refused(lambda: check_types(spec(), files, [pa.schema([("a", pa.month_day_nano_interval())])]))


def test_rows_of_too_many_columns(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_check.postprocess, "MOST_COLUMNS", 3)
    rows = [{f"key {number}": 1, "a": 1} for number in range(9)]
    url = web.serve(
        f"{HOST}/x.jsonl{SECRET}", Answer("".join(json.dumps(one) + "\n" for one in rows).encode())
    )
    assert_refused(lambda: look(url))
