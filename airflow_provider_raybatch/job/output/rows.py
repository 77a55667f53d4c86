# SPDX-License-Identifier: Apache-2.0
"""Rows of parts as those of the dataset, in ranges; as values and lines of JSON; and as texts of a report."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.row_template import MapEntries
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, cut_to, storable, without_queries
from airflow_provider_raybatch.job.input.prompt_values import mark
from airflow_provider_raybatch.job.input.table import as_text, one_array
from airflow_provider_raybatch.job.parts.part import Part, inputs_of
from airflow_provider_raybatch.job.parts.reading import portions, together
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.tasks.base import Task

if TYPE_CHECKING:  # it imports Ray, which readers of reports may lack
    from airflow_provider_raybatch.job.steps.known import StepParts

_ROW_GROUP = 131_072
_MOST_BYTES = 128 * 1024 * 1024
"""In memory at once: the input of a row is repeated for each row that it becomes."""
_PART_BYTES = 128 * 1024 * 1024
_LARGEST_RANGE_ROWS = 250_000
"""To publish a row of a short answer takes 1.2 KB of memory."""
_MOST_DECODED = 512 * 1024 * 1024
"""Bytes of a range in memory; publishing takes a few times as much. Well below the 2 GiB that a column of
text may have in Arrow, which equal rows reach in a file of a few MiB."""


def dataset_rows(good: pa.Table, task: Task, most: int = _MOST_BYTES) -> tuple[int, Iterator[pa.Table]]:
    """How many rows the dataset has of good rows of parts, and those rows, some at a time.

    :param most: about how many bytes at a time.
    """
    if task.chunk_index is None:
        return good.num_rows, in_groups(good)
    outputs, of_row = task.split(one_array(good["output"]))
    inputs = good.drop_columns(["output"])
    return len(of_row), (
        inputs.take(pa.array(of_row[start:stop])).append_column("output", outputs.slice(start, stop - start))
        for start, stop in portions(together(inputs.columns, inputs.num_rows)[of_row].tolist(), most)
    )


def in_groups(rows: pa.Table, most: int = _ROW_GROUP) -> Iterator[pa.Table]:
    """The rows, by default as many at a time as a row group of a file has: what is made of them is a copy."""
    return (rows.slice(start, most) for start in range(0, rows.num_rows, most))


def blank_rows(good: pa.Table, bad: pa.Table, spec: BatchInferenceSpec) -> int:
    """How many rows give the prompt only blank text."""
    if spec.on_blank == "null" and not spec.step_name:
        return good["output"].null_count if good.num_rows else 0
    if bad.num_rows:
        bad = bad.filter(pc.invert(pc.ends_with(pc.struct_field(bad["failure"], "step"), "read")))
    columns, some = list(spec.column_arguments()), chain(in_groups(good), in_groups(bad))
    return sum(_blank_in(inputs_of(rows), columns) for rows in some)


def _blank_in(inputs: Mapping[str, pa.Array], columns: Sequence[str]) -> int:
    if not columns or not inputs.keys() >= {*columns}:  # images that parts do not have
        return 0
    found: Any = True
    for column in map(inputs.__getitem__, columns):
        blank = column.is_null()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            is_empty = pc.equal(pc.utf8_length(column), 0)
            blank = pc.fill_null(pc.or_(pc.utf8_is_space(column), is_empty), True)
        found = pc.and_(found, blank)
    return int(pc.sum(found).as_py() or 0)


def row_values(table: pa.Table) -> list[dict[str, Any]]:
    """The rows, an Arrow map as an object, as in prompts.

    Values that Python can't hold (invalid UTF-8, dates after year 9999) are what JSON has for them.
    """
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (ValueError, OverflowError):
        columns = [_values(column) for column in table.columns]
        return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]
    if maps := [column.name for column in table.schema if "map<" in str(column.type)]:
        mark(rows, table.schema, maps)
        rows = [{**row, **{name: _with_objects(row[name]) for name in maps}} for row in rows]
    return rows


def json_line(row: dict[str, Any]) -> bytes:
    """A row as a line of JSON, which has no NaN and no infinity."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=as_text)
    except ValueError:
        text = json.dumps(_finite(row), ensure_ascii=False, default=as_text)
    return (text + "\n").encode()


def _with_objects(value: Any) -> Any:
    if isinstance(value, MapEntries):
        return {as_text(name): _with_objects(inner) for name, inner in value}
    if isinstance(value, dict):
        return {name: _with_objects(inner) for name, inner in value.items()}
    return [_with_objects(inner) for inner in value] if isinstance(value, list) else value


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        raw = column.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", "replace") for value in raw]
    except (ValueError, OverflowError):
        return column.cast(pa.string()).to_pylist()  # type: ignore[no-any-return]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


LONGEST = 2000
"""Characters of a text."""
MOST_COLUMNS = 100
_VALUE, _ITEMS, _DEEPEST = 500, 20, 6
"""Of one value in a row: characters, items and levels."""
_MORE = "\u2026"


def row_text(row: Mapping[str, Any], columns: int) -> str:
    """Input columns as JSON: short values, and as many columns as fit.

    :param columns: of the whole row.
    """
    shown: dict[str, Any] = {}
    size = 0
    for name, value in row.items():
        short = _short(value, _DEEPEST)
        size += len(name) + len(json.dumps(short, ensure_ascii=False)) + 6
        if shown and size > LONGEST:
            break
        shown[fit_to(_VALUE, name)] = short
    if columns > len(shown):
        shown[_MORE] = f"and {count_of(columns - len(shown), 'more column')}"
    return json.dumps(shown, ensure_ascii=False)


def request_text(request: Request) -> str:
    """What was asked: a prompt, or the messages of a chat with their roles."""
    if request.messages is None:
        return text_of(request.prompt or "")
    messages = [(str(one.get("role", "")), _content(one.get("content"))) for one in request.messages]
    if len(messages) == 1 and messages[0][0] == "user":
        return text_of(messages[0][1])
    return text_of("\n\n".join(f"{role}: {content}" for role, content in messages))


def failed_request_text(kept: str) -> str:
    """The request that a failed row keeps: JSON, or the text of a row that could not be read."""
    try:
        found = json.loads(kept)
        request = Request(messages=found.get("messages"), prompt=found.get("prompt"))
        return request_text(request) if request.messages or request.prompt else text_of(kept)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return text_of(kept)


def response_text(value: Any, calls: Sequence[Mapping[str, Any]] | None = None) -> str | None:
    """An answer: its text, a vector's first numbers, or values as JSON.

    :param calls: of tools.
    """
    told = [f"{one['name']}({one['arguments']})" for one in calls or ()]
    if value is None or value == "":
        return text_of("\n".join(told)) if told or value == "" else None
    text = value if isinstance(value, str) else json.dumps(_short(value, _DEEPEST), ensure_ascii=False)
    return text_of("\n".join([text, *told]))


def text_of(text: str) -> str:
    """`text`, cut, as a database and a page take it."""
    return fit_to(LONGEST, text)


def fit_to(longest: int, text: str) -> str:
    """The same, cut to so many characters: no text of a row reaches a report past here.

    URLs lose their logins and queries before the cut, which may hide the end of a login.
    """
    return cut_to(without_queries(storable(text)), longest)


def _content(content: Any) -> str:
    """A message's content; of parts other than text, their type alone."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    return "\n".join(_part(part) for part in content)


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    text = part.get("text")
    return text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _short(value: Any, depth: int) -> Any:
    """`value` as JSON has it, without what makes it long."""
    if isinstance(value, str):
        return fit_to(_VALUE, value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return (
            f"{as_text(value[:48])}{_MORE} ({count_of(len(value), 'byte')})"
            if len(value) > 48
            else as_text(value)
        )
    if isinstance(value, Mapping):
        inner = {fit_to(_VALUE, str(name)): _inside(one, depth) for name, one in list(value.items())[:_ITEMS]}
        more = {_MORE: f"{len(value) - _ITEMS:,} more"} if len(value) > _ITEMS else {}
        return inner | more
    if isinstance(value, (list, tuple)):
        items = [_inside(one, depth) for one in value[:_ITEMS]]
        return items + ([f"{_MORE} {len(value) - _ITEMS:,} more"] if len(value) > _ITEMS else [])
    return fit_to(_VALUE, str(as_text(value)))


def _inside(value: Any, depth: int) -> Any:
    return _short(value, depth - 1) if depth else _MORE


@dataclass(frozen=True)
class Range:
    """Rows for one published file: those of `parts` with `first` <= ordinal < `stop`.

    :param answers: of each step before the last one, the parts that tell which answers were there already.
    """

    number: int
    first: int
    stop: int
    parts: tuple[Part, ...]
    answers: tuple[StepParts, ...] = ()


def ranges(
    parts: Sequence[Part],
    rows_per_range: int,
    total: int,
    decoded: Mapping[str, bytes] | None = None,
) -> list[Range]:
    """Cut the ordinals 0 to `total` into ranges of `rows_per_range`, with the parts that reach into each.

    :param decoded: :func:`decoded_bytes` of parts, by their paths. A range of too many bytes is halved.
    """
    ordered = sorted(parts, key=lambda part: part.first)
    firsts = [part.first for part in ordered]
    reached = list(accumulate((part.last for part in ordered), max))
    sizes = decoded or {}
    out: list[Range] = []
    waiting = [(first, min(first + rows_per_range, total)) for first in range(0, total, rows_per_range)]
    waiting.reverse()
    while waiting:
        first, stop = waiting.pop()
        near = ordered[bisect_left(reached, first) : bisect_left(firsts, stop)]
        inside = tuple(part for part in near if part.inside(first, stop))
        if stop - first > 1 and sum(_share(part, first, stop, sizes) for part in inside) > _MOST_DECODED:
            middle = (first + stop) // 2
            waiting += [(middle, stop), (first, middle)]
        elif inside:
            out.append(Range(len(out), first, stop, inside))
    return out


def _share(part: Part, first: int, stop: int, decoded: Mapping[str, bytes]) -> float:
    """Bytes of a part's rows that lie in a range."""
    ordinals, sizes = np.frombuffer(decoded.get(part.path, b""), np.int64).reshape(-1, 2).T
    ends = np.concatenate([[part.first - 1], ordinals])
    before, until = np.interp((first - 1, stop - 1), ends, np.concatenate([[0], sizes]))
    return float(until - before)


def rows_per_range(spec: BatchInferenceSpec, parts: Sequence[Part]) -> int:
    """How many rows a published file gets, of about 128 MiB unless the job says so."""
    if spec.rows_per_part is not None:
        return spec.rows_per_part
    rows, size = sum(part.rows for part in parts), sum(part.bytes for part in parts)
    return max(1, min(_LARGEST_RANGE_ROWS, int(_PART_BYTES / max(1.0, size / max(1, rows)))))
