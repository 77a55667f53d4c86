# SPDX-License-Identifier: Apache-2.0
"""One row of the input, which may have thousands of columns."""

from __future__ import annotations

import json
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report.elements import block, folded, node, table, words_of

_MOST_COLUMNS = 40
_LONGEST_VALUE = 500


def input_row(text: str | None) -> Element | None:
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
