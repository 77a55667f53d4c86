# SPDX-License-Identifier: Apache-2.0
"""One row: what was asked and answered, and its input, which may have thousands of columns."""

from __future__ import annotations

import json
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report.elements import (
    Content,
    block,
    folded,
    labelled,
    node,
    side_by_side,
    table,
    words_of,
)

_MOST_COLUMNS = 40
_LONGEST_VALUE = 500


def row_article(ordinal: int, row_id: str | None, *content: Content, row: str | None) -> Element:
    """A row with its position, what is told of it, and its input.

    :param row: input columns as JSON text.
    """
    name: Content = [", id ", words_of(row_id)] if row_id is not None else None
    return node("article", node("h4", f"Row {ordinal:,}", name), content, _input_row(row), class_="sample")


def asked(request: str | None, response: str | None) -> Element:
    """What was asked beside what was answered."""
    return side_by_side(labelled("Prompt", request), labelled("Answer", response))


def _input_row(text: str | None) -> Element | None:
    """The row, folded: its columns as a table, or as it is where its text was cut."""
    if text is None:
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or not row:
        return folded("Input row", block(text))
    shown = list(row.items())[:_MOST_COLUMNS]
    rows = [(words_of(name), words_of(_text_of(value), _LONGEST_VALUE)) for name, value in shown]
    left = len(row) - len(shown)
    more = node("p", f"And {count_of(left, 'more column')}.", class_="dim") if left else None
    return folded(
        f"Input row, {count_of(len(row), 'column')}", table("Input row", ("Column", "Value"), rows), more
    )


def _text_of(value: object) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "nested too deeply to be shown"
