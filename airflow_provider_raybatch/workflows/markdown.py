# SPDX-License-Identifier: Apache-2.0
"""Tables of Markdown, whose cells hold any text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_LONGEST_CELL = 200


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
    text = " ".join(text.split())
    text = text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 3] + "..."
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
