# SPDX-License-Identifier: Apache-2.0
"""Documents of a few MiB that would become pages of gigabytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.plugins.finding import MOST_LISTED, MOST_VALUES, manifest_in, report_in
from airflow_provider_raybatch.plugins.reading import NotShownError
from tests.support.report_files import key, manifest, report

MANY = 60_000
FILE = {"path": "part-00000.parquet", "rows": 1, "bytes": 10}


@pytest.mark.parametrize(
    "fields",
    [
        {"columns": {str(number): "int64" for number in range(MANY)}},
        {"arguments": {"a": [[number] for number in range(MANY // 2)]}},
        {"replicas": [{"replica": "r", "rows": 1}] * (MANY // 2)},
        {"samples": [{"ordinal": 1}] * MANY},
        {"last_run": {"rows": 1, "errors": 0, "columns": {str(number): "" for number in range(MANY)}}},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_report_of_too_many_values(fields: dict[str, Any]) -> None:
    with pytest.raises(NotShownError, match="it has more values than the 50,000"):
        report_in(report(key(), **fields), "r.json")


def test_a_wide_report_is_shown() -> None:
    columns = {f"column {number}": "string" for number in range(10_000)}
    assert len(columns) * 2 < MOST_VALUES
    found = report_in(
        report(key(), columns=columns, last_run={"rows": 1, "errors": 0, "columns": columns}), "r"
    )
    assert len(found.columns) == 10_000


def test_a_manifest_of_many_files() -> None:
    """A large dataset may well have them; only their number and size, and the first ones, are needed."""
    found = manifest_in(manifest(key(), files=[FILE] * MANY), "m.json")
    assert (found.files, found.bytes) == (MANY, 10 * MANY)
    assert len(found.content.files) == MOST_LISTED
    odd = [FILE, {"bytes": "many"}, 5, {"bytes": -1}]
    with pytest.raises(NotShownError, match="files"):
        manifest_in(manifest(key(), files=odd), "m.json")


def test_a_manifest_of_too_many_columns() -> None:
    schema = [{"name": "a", "type": "b"}] * MANY
    with pytest.raises(NotShownError, match="it has more values"):
        manifest_in(manifest(key(), schema=schema), "m.json")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"5", b'"x"', b'{"files": 5}', b"[" * 100_000, b"9" * 10_000]
)
def test_what_is_no_document(content: bytes) -> None:
    for read in (report_in, manifest_in):
        with pytest.raises(NotShownError, match="it is not a"):
            read(content, "file")


def test_deep_documents_are_counted_without_recursion() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(NotShownError, match="report"):
        report_in(json.dumps(deep).encode(), "file")
