# SPDX-License-Identifier: Apache-2.0
"""Parses the rows of a piece of a JSON Lines or CSV file."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.contract.arguments.openai_batch import CUSTOM_ID, LINE_COLUMNS
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input import csv_records
from airflow_provider_raybatch.job.input.chunk_rows import BadRow
from airflow_provider_raybatch.job.input.text_index import is_blank

_LONGEST_SHOWN = 2000
_KINDS = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
_NULL = r"\N"
_DEEPEST = 200
"""Lists and objects in each other, in the body of a batch line; Python's own reader takes several hundred."""
_MARK = "\ufeff"
"""Byte order mark, also inside a file that was joined from several."""


def json_rows(data: bytes) -> list[dict[str, Any] | BadRow]:
    """A row for each line that is not blank."""
    return [_json_row(line) for line in io.BytesIO(data) if not is_blank(line)]


def _json_row(line: bytes) -> dict[str, Any] | BadRow:
    try:
        # Decoded here, since the decoder would accept surrogates in bytes.
        value = _DECODER.decode(line.decode("utf-8-sig"))
        if b"\\u" in line:
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except _DoubleKeyError as error:
        return BadRow(f"an object in the line has the key {str(error)!r} twice", _shown(line))
    except (ValueError, RecursionError) as error:
        return BadRow(f"the line is not JSON ({error})", _shown(line))
    if isinstance(value, dict):
        return value
    return BadRow(
        f"the line is JSON, but {_KINDS.get(type(value), 'a number')} instead of an object", _shown(line)
    )


def batch_lines(data: bytes) -> list[dict[str, Any] | BadRow]:
    """Lines of an OpenAI batch file as rows of texts; the body is written as JSON, whatever it is.

    What is not a text where one belongs is null, and other fields of a line are left out.
    """
    return [_batch_line(row) if isinstance(row, dict) else row for row in json_rows(data)]


def _batch_line(line: dict[str, Any]) -> dict[str, Any] | BadRow:
    row: dict[str, Any] = {name: _text(line.get(name)) for name in LINE_COLUMNS}
    if (body := line.get("body")) is not None:
        try:
            row["body"] = json.dumps(body, ensure_ascii=False, allow_nan=False)
            _check_depth(body, row["body"])
        except (ValueError, RecursionError) as error:
            shown = json.dumps({CUSTOM_ID: row[CUSTOM_ID]}).encode()
            return BadRow(f"the body of the line is not JSON ({error})", _shown(shown))
    return row


def _check_depth(body: Any, text: str) -> None:
    """Refuse what may be read here, and not where the stack is deeper, as that of a publisher.

    :raises ValueError: lists and objects are too deep in each other.
    """
    depth, inner = 0, [body]
    if text.count("[") + text.count("{") <= _DEEPEST:
        return
    while inner := [one for one in inner if isinstance(one, (dict, list))]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"more than {_DEEPEST} lists and objects are in each other")
        inner = [one for some in inner for one in (some.values() if isinstance(some, dict) else some)]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class _DoubleKeyError(Exception):
    """An object has a key twice; JSON's reader would silently keep the last value."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubleKeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


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
            reason = "the row is not UTF-8 text; set its encoding, such as csv_options={'encoding': 'cp1252'}"
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
