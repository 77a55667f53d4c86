# SPDX-License-Identifier: Apache-2.0
"""The check on Airflow's worker and the job read the same bytes in the same way."""

from __future__ import annotations

import io
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.batch_api.store.validation import validate
from airflow_provider_raybatch.contract.arguments.openai_batch import CHAT, EMBEDDINGS
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.preflight.input_check import check_ids
from airflow_provider_raybatch.job.request.openai_batch.line import request_of
from airflow_provider_raybatch.job.request.openai_batch.parameters import LineError
from tests.support.openai_lines import IN_AND_OUT, chat
from tests.support.sources import look_at_source
from tests.support.specs import spec

OF_LINES = {"custom_id", "method", "url", "body", "model"}
"""Fields for which the check refuses a file; all others are the request's own."""
MARK = b"\xef\xbb\xbf"

anything = st.recursive(
    st.sampled_from([None, True, 0, 7, 1.5, 1e22, "", "a", "é", "e\u0301", "\U0001f600", "[{", "POST"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=3,
)


def mostly(*good: Any, other: st.SearchStrategy[Any] = anything) -> st.SearchStrategy[Any]:
    return st.one_of([*[st.sampled_from(good)] * 12, other])


body = st.fixed_dictionaries(
    {"model": mostly("echo"), "messages": st.just(chat()["messages"])},
    optional={"max_tokens": st.sampled_from([5, -1]), "user": anything, "deep": anything},
)
fields = st.fixed_dictionaries(
    {
        "custom_id": mostly(*"abcdefghijklmnopqrstuvwxyz", "é", "e\u0301", "a ", "\U0001f600", "\0", "A"),
        "method": mostly("POST", other=st.sampled_from(["GET", "", None, 5])),
        "url": mostly(CHAT, other=st.sampled_from([EMBEDDINGS, "/v1/x", "", None, 5])),
        "body": st.one_of([body] * 12 + [anything]),
    },
    optional={"extra": anything},
)
encoded = st.builds(
    lambda value, ascii_only: json.dumps(value, ensure_ascii=ascii_only).encode(), fields, st.booleans()
)

LIKE_DUCKDB = json.dumps(
    {"ab": "DUCK\u00c9", "custom_id": "a", "method": "POST", "url": CHAT, "body": chat()}, ensure_ascii=False
).encode()
"""Begins as a database of DuckDB, but for its version."""


def replaced(line: bytes, change: tuple[bytes, bytes]) -> bytes:
    return line.replace(*change, 1)


change = st.sampled_from([
    (b"", b""),
    (b" ", b"\r"),
    (b" ", b"\t  "),
    (b": ", b" : "),
    (b"{", MARK + b"{"),
    (b"{", MARK + MARK + b"{"),
    (b"hello", b"hel\\nlo"),
    (b"hello", b"hel\\ud83d\\ude00lo"),
    (b"hello", b"hel\\\\ud800lo"),
    (b'"max_tokens": 5', b'"max_tokens": 5e2'),
])  # fmt: skip
breakage = st.sampled_from([
    (b"}", b""),
    (b'"', b"'"),
    (b"hello", b"\xff"),
    (b"hello", b"\xed\xa0\x80"),
    (b"hello", b"\\ud800"),
    (b"hello", b"\\udc00\\ud800"),
    (b"hello", b"\x01"),
    (b"hello", b"\0"),
    (b'"max_tokens": 5', b'"max_tokens": NaN'),
    (b'"max_tokens": 5', b'"max_tokens": -Infinity'),
    (b'"max_tokens": 5', b'"max_tokens": 1e999'),
    (b'"max_tokens": 5', b'"max_tokens": ' + b"1" * 5000),
    (b'"max_tokens": 5', b'"max_tokens": 5, "m\\u0061x_tokens": 5'),
    (b"{", b'{"method": "POST", '),
    (b"{", b'{"extra": NaN, '),
    (b"{", b'{"other": ' + b"[" * 201 + b"]" * 201 + b", "),
    (b"{", b'{"other": ' + b"[" * 200 + b"]" * 200 + b", "),
    (b"{", b'{"other": ' + b"[" * 700 + b"]" * 700 + b", "),
    (b'"messages"', b'"deeper": ' + b"[" * 199 + b"]" * 199 + b', "messages"'),
    (b'"messages"', b'"deeper": ' + b"[" * 200 + b"]" * 200 + b', "messages"'),
])  # fmt: skip
good_line = st.builds(replaced, encoded, change)
bad_line = st.builds(replaced, encoded, breakage) | st.sampled_from([
    b"[]", b"null", b"7", b'"a"', b"{}", b" " * 15, b" " * 40, b"\x0b", b"\x1f", b"\xc2\xa0", b"PK\x03\x04",
    b"\x1f\x8b", b"\xff\xfe{\0",
])  # fmt: skip
line = st.one_of([*[good_line] * 14, bad_line])
separator = st.sampled_from([*[b"\n"] * 6, b"\r\n", b"\n\n", b"\n \t\r\n", b"\n" + b" " * 15 + b"\n", b"\r"])
files = st.builds(
    lambda mark, pieces, last: mark + b"".join(line + end for line, end in pieces) + last,
    st.sampled_from([*[b""] * 6, MARK, MARK + MARK, b"\n"]),
    st.lists(st.tuples(line, separator), min_size=1, max_size=6),
    st.one_of(st.just(b""), line),
)


def job_takes(content: bytes) -> bool:
    """Whether the job neither refuses the file nor answers a line with an error of the line itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        path.write_bytes(content)
        asked = spec(source=[str(path)], **IN_AND_OUT)
        try:
            source = look_at_source(asked)
            check_ids(source, "custom_id", None, are_lines=True)
        except PreflightError:
            return False
        reader = Reader(source.listing, None, None)
        rows = [row for chunk in source.chunks(3) for row in reader.read(chunk).rows]
    for row in rows:
        if not isinstance(row, dict):
            return False
        try:
            request_of(row, asked)
        except LineError as error:
            if error.param in OF_LINES:
                return False
    return bool(rows)


@settings(max_examples=60)
@given(files)
@example(LIKE_DUCKDB)
def test_a_file_without_errors_is_one_that_the_job_takes(content: bytes) -> None:
    found = validate(io.BytesIO(content), endpoint=CHAT, model="echo")
    assert (not found.errors) == job_takes(content)


def test_generated_files_are_of_both_kinds() -> None:
    """Else the comparisons above show little."""
    seen = set()

    @settings(max_examples=80)
    @given(files)
    def look(content: bytes) -> None:
        seen.add(validate(io.BytesIO(content), endpoint=CHAT, model="echo").errors == [])

    look()
    assert seen == {True, False}
