# SPDX-License-Identifier: Apache-2.0
"""Parses the rows of a piece of a JSON Lines or CSV file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any

from airflow_provider_raybatch.contract.arguments.openai_batch import CUSTOM_ID, LINE_COLUMNS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.json_lines import (
    JsonLineError,
    batch_request,
    is_blank,
    json_object,
)
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input import csv_records
from airflow_provider_raybatch.job.input.chunk_rows import BadRow

_LONGEST_SHOWN = 2000
_NULL = r"\N"
_ESCAPED = re.compile(r"\W", re.ASCII)
"""Characters of a key that may be written as escapes."""
_MARK = "\ufeff"
"""Byte order mark, also inside a file that was joined from several."""


def json_rows(data: bytes) -> list[dict[str, Any] | BadRow]:
    """A row for each line that is not blank."""
    return [_json_row(line) for line in io.BytesIO(data) if not is_blank(line)]


def _json_row(line: bytes) -> dict[str, Any] | BadRow:
    try:
        return json_object(line)
    except JsonLineError as error:
        return BadRow(str(error), _shown(line))


def columns_in(data: bytes, names: Collection[str], most: int) -> set[str]:
    """Those of `names` that any of the first `most` rows has. Only lines that may have one are parsed."""
    marks = {name: f'"{_ESCAPED.split(name)[0]}'.encode() for name in names}
    found: set[str] = set()
    for line in islice((line for line in io.BytesIO(data) if not is_blank(line)), most):
        if left := [name for name, mark in marks.items() if mark in line and name not in found]:
            row = _json_row(line)
            found.update(name for name in left if isinstance(row, dict) and name in row)
    return found


def batch_lines(data: bytes) -> list[dict[str, Any] | BadRow]:
    """Lines of an OpenAI batch file as rows of texts; the body is written as JSON, whatever it is.

    A field that is null or an empty text is null, and other fields of a line are left out.
    """
    return [_batch_line(line) for line in io.BytesIO(data) if not is_blank(line)]


def _batch_line(line: bytes) -> dict[str, Any] | BadRow:
    try:
        found = batch_request(line)
    except JsonLineError as error:
        return BadRow(str(error), _shown(_named(line)))
    for name in LINE_COLUMNS:
        value = found.get(name)
        if name != "body" and value is not None and not isinstance(value, str):
            why = f"{name}: it must be a text in quotes, but it is {shown(value)}"
            return BadRow(why, _shown(_named(line)))
    row: dict[str, Any] = {name: _text(found.get(name)) for name in LINE_COLUMNS}
    if (body := found.get("body")) is not None:
        row["body"] = json.dumps(body, ensure_ascii=False, allow_nan=False)
    return row


def _named(line: bytes) -> bytes:
    """What is kept of a broken line: its id alone, if it can be read, since the line is cut."""
    try:
        return json.dumps({CUSTOM_ID: _text(json_object(line).get(CUSTOM_ID))}).encode()
    except JsonLineError:
        return line


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def csv_rows(
    data: bytes, header: tuple[str, ...], delimiter: str = ",", is_in_file: bool = True
) -> list[dict[str, Any] | BadRow]:
    r"""All values stay text, since a leading zero is data; ``\N`` is null, as databases write it.

    :param is_in_file: whether `header` is a row of the file, which joined files repeat.
    """
    last = list(header[-1:]) if is_in_file and len(header) > 1 else None
    has_nulls = _NULL.encode() in data
    rows: list[dict[str, Any] | BadRow] = []
    try:
        text, damaged = data.decode("utf-8"), False
    except UnicodeDecodeError:
        text, damaged = data.decode("utf-8", "surrogateescape"), True
    for fields in csv_records.records(text, delimiter):
        if isinstance(fields, BadRow):
            rows.append(replace(fields, text=fields.text[:_LONGEST_SHOWN]))
        elif len(fields) != len(header):
            rows.append(
                BadRow(
                    f"the row has {count_of(len(fields), 'field')}, the header has {len(header)}",
                    _shown(fields),
                )
            )
        elif damaged and any("\udc80" <= character <= "\udcff" for value in fields for character in value):
            options = {
                **({} if delimiter == "," else {"delimiter": delimiter}),
                **({} if is_in_file else {"header": list(header)}),
                "encoding": "cp1252",
            }
            reason = f"the row is not UTF-8 text; set csv_options={options}, or its own encoding"
            rows.append(BadRow(reason, _shown(fields)))
        elif fields[-1:] == last and [fields[0].removeprefix(_MARK), *fields[1:]] == list(header):
            reason = "the row is the header line once more; remove it from the file"
            rows.append(BadRow(reason, _shown(fields)))
        else:
            values = [None if value == _NULL else value for value in fields] if has_nulls else fields
            rows.append(dict(zip(header, values, strict=True)))
    return rows


def _shown(raw: bytes | list[str]) -> str:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ",".join(raw)
    return text.encode("utf-8", "replace").decode("utf-8")[:_LONGEST_SHOWN]
