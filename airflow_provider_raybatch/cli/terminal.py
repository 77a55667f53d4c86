# SPDX-License-Identifier: Apache-2.0
"""Rows on a terminal: as a table, or as JSON Lines. Text of data or of a cluster can't steer the terminal."""

from __future__ import annotations

import base64
import datetime
import json
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_raybatch.contract.text import clean

Row = Mapping[str, Any]

_LEAST_WIDTH = 15
"""Characters of a column, below which other columns are left out."""
_BETWEEN = 2
"""Characters between two columns."""
_READABLE = 20
"""Characters that a long value needs beside values that are never cut."""
_LONGEST_CELL = 200
_STEERING = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What JSON leaves as it is: control characters, marks that turn text around, and halves of characters."""
_TURNING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def print_rows(rows: Iterable[Row], form: str, first: Sequence[str] = (), whole: str | None = None) -> None:
    """Print rows.

    :param form: ``table`` or ``jsonl``.
    :param first: columns that a table shows before others, also where not all columns fit.
    :param whole: a column whose values are never cut, since people copy them.
    """
    if form == "jsonl":
        for row in rows:
            print(json_line(row))
    else:
        print_table(list(rows), first, whole)


def json_line(row: Row) -> str:
    """A row as one line of JSON, which reads back as the same values."""
    text = json.dumps(dict(row), ensure_ascii=False, default=_plain)
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_table(rows: Sequence[Row], first: Sequence[str] = (), whole: str | None = None) -> None:
    """Print a table as wide as the terminal: wide values are cut, columns without room are named below it."""
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    width = shutil.get_terminal_size((120, 24)).columns
    shown = _with_room(names, first, max(1, width // _LEAST_WIDTH))
    if whole is not None:
        shown = _beside(whole, names, first, rows, width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
    cells = {name: [cell(name), *(cell(row.get(name)) for row in rows)] for name in shown}
    longest = {name: max(1, *map(cell_len, texts)) for name, texts in cells.items()}
    for name, room in _rooms(longest, width - _BETWEEN * (len(shown) - 1), whole).items():
        table.add_column(Text(cells[name][0]), overflow="ellipsis", no_wrap=True, width=room)
    for row in rows:
        table.add_row(*(Text(cell(row.get(name))) for name in shown))
    # A value that is never cut may be wider than the terminal, which then folds its line.
    widest = max(width, *(longest[name] for name in shown if name == whole), 0)
    Console(width=widest, highlight=False).print(table)
    if left := [name for name in names if name not in set(shown)]:
        listed = ", ".join(cell(name) for name in left[:5])
        more = "" if len(left) <= 5 else f" and {len(left) - 5:,} more"
        others = (
            "--columns NAME ... shows others, --format jsonl all"
            if whole is None
            else "--format jsonl shows all"
        )
        print(f"Not shown: {listed}{more}; {others}.")


def _rooms(longest: Mapping[str, int], width: int, whole: str | None) -> dict[str, int]:
    """Characters for each column: short ones get all that they need, and long ones share what is left."""
    rooms, left = {}, width
    in_order = sorted(longest, key=lambda name: (name != whole, longest[name]))
    for place, name in enumerate(in_order):
        room = longest[name] if name == whole else max(1, left // (len(in_order) - place))
        rooms[name] = min(longest[name], room)
        left -= rooms[name]
    return {name: rooms[name] for name in longest}


def cell(value: Any) -> str:
    """A value as one line of a table's cell."""
    if value is None:
        return ""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=_plain)
    return steady(value[:_LONGEST_CELL]).replace("\n", "\u23ce").replace("\t", " ")


def steady(text: str) -> str:
    """`text` without what steers a terminal or turns text around; line feeds and tabs stay."""
    return _TURNING.sub("\ufffd", clean(text))


def _with_room(names: Sequence[str], first: Sequence[str], most: int) -> list[str]:
    if len(names) <= most:
        return list(names)
    chosen = set(list(dict.fromkeys([*(name for name in first if name in names), *names]))[:most])
    return [name for name in names if name in chosen]


def _beside(
    whole: str, names: Sequence[str], first: Sequence[str], rows: Sequence[Row], width: int
) -> list[str]:
    """The columns that can be read beside one whose values are never cut."""
    from rich.cells import cell_len

    chosen, left = set[str](), width
    for name in dict.fromkeys([whole, *(name for name in first if name in names), *names]):
        longest = max(cell_len(cell(name)), *(cell_len(cell(row.get(name))) for row in rows))
        room = (longest if name == whole else min(longest, _READABLE)) + _BETWEEN
        if name == whole or room <= left:
            chosen.add(name)
            left -= room
    return [name for name in names if name in chosen]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)
