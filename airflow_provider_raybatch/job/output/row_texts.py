# SPDX-License-Identifier: Apache-2.0
"""Rows, requests and answers as short texts that a person reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.text import count_of, cut_to, storable, without_queries
from airflow_provider_raybatch.job.input.table import as_text
from airflow_provider_raybatch.job.row import Request

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
    return cut_to(longest, without_queries(storable(text)))


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
