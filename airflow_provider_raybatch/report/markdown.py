# SPDX-License-Identifier: Apache-2.0
"""Markdown that holds any text: tables, code, escaped words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_raybatch.contract.text import cut_to
from airflow_provider_raybatch.report.words import fit

_LONGEST_CELL = 200
_MARKUP = re.compile(r"[\\`*<|~$@]|\](?=[(\[:])|(?<!\w)_|_(?!\w)|&(?=#?\w+;)|:(?=//)|(?<=www)\.")
"""What may begin markup within a line; slashes, ``www.`` and an at sign make links of bare addresses."""
_BLOCK = re.compile(r"^([>#+=-]|\d{1,9}[.)](?=\s|$))")
"""What begins a block at the start of a line."""
_ENTITIES = {"<": "&lt;", "&": "&amp;", ":": "&#58;", "@": "&#64;"}
_TICKS = re.compile("`+")


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a heading for each column; ends with a line feed."""
    lines = ["| " + " | ".join(cell(value) for value in row) + " |" for row in (names, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(names), *lines[1:]]) + "\n"


def cell(value: Any) -> str:
    """Escaped text for a table cell, whatever a model wrote."""
    if value is None:
        return ""
    if isinstance(value, float):
        text = f"{value:,.3f}".rstrip("0").rstrip(".")
    else:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    text = " ".join(fit(text).split())
    text = text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 3] + "..."
    return _MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), text)


def line(value: Any) -> str:
    """The same for a heading, a list or a paragraph."""
    return _BLOCK.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", cell(value))


def fenced(text: str, longest: int | None = None) -> str:
    """`text` as a block of code, whose fence is longer than any in it."""
    text = fit(text if longest is None else cut_to(longest, text))
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in _TICKS.findall(text))])
    return f"{fence}\n{text}\n{fence}"
