# SPDX-License-Identifier: Apache-2.0
"""What verbs write: tables, texts and JSON, without what Airflow logs and warns of meanwhile.

Text of data or of a cluster can't steer the terminal, and shows no secret that Airflow knows.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_provider_raybatch.contract.preview import Findings
from airflow_provider_raybatch.contract.text import clean

Row = Mapping[str, Any]
Result = TypeVar("Result")
Value = TypeVar("Value")

_WITHOUT_TERMINAL = (120, 24)
_LEAST_WIDTH = 15
"""Characters of a column, below which other columns are left out."""
_LONGEST_CELL = 200
_STEERING = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What JSON leaves as it is: control characters, marks that turn text around, and halves of characters."""
_TURNING = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def console() -> Console:
    """Where output goes: as wide as the terminal."""
    width = shutil.get_terminal_size(_WITHOUT_TERMINAL).columns
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_rows(rows: Iterable[Row], form: str, first: Sequence[str] = ()) -> None:
    """Print rows.

    :param form: ``table`` or ``jsonl``.
    :param first: columns that a table shows before others, also where not all columns fit.
    """
    if form == "jsonl":
        for row in rows:
            print(json_line(row))
        return
    listed = list(rows)
    names = list(dict.fromkeys(name for row in listed for name in row))
    to = console()
    in_order = dict.fromkeys([*(name for name in first if name in names), *names])
    chosen = list(in_order)[: max(1, to.width // _LEAST_WIDTH)]
    shown = [name for name in names if name in chosen]
    if shown:
        cells = [[cell(row.get(name)) for name in shown] for row in listed]
        to.print(_table([cell(name) for name in shown], cells))
    if left := [cell(name) for name in names if name not in chosen]:
        more = "" if len(left) <= 5 else f" and {len(left) - 5:,} more"
        print(f"Not shown: {', '.join(left[:5])}{more}; --format jsonl shows all.")


def show_table(
    to: Console,
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
) -> None:
    """Write a table.

    :param numbers: places of the columns that are aligned to the right.
    """
    to.print()
    to.print(Text(title))
    to.print(_table(columns, rows, numbers))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> Table:
    """A table whose wide values are folded."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, show_edge=False)
    for place, name in enumerate(columns):
        made.add_column(Text(name), justify="right" if place in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(steady(one)) for one in row))
    return made


def show_findings(to: Console, found: Findings, notes: Sequence[str]) -> None:
    """Refusals and notices, a sentence each."""
    for title, sentences in (
        ("The job would be refused:", found.refusals),
        ("To know:", (*notes, *found.notices)),
    ):
        if sentences:
            to.print()
            to.print(Text(title, style="bold"))
            for sentence in sentences:
                show_indented(to, Text(steady(sentence)), " - ", "   ")


def show_indented(to: Console, text: Text, first: str, others: str) -> None:
    """Write a text after `first`, and its further lines after `others`, without spaces at their ends."""
    for number, line in enumerate(text.wrap(to, max(1, to.width - len(others)))):
        line.rstrip()
        to.print(Text.assemble(others if number else first, line))


def json_line(row: Row) -> str:
    """A row as one line of JSON, which reads back as the same values."""
    text = json.dumps(dict(row), ensure_ascii=False, default=_plain)
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def quietly(call: Callable[[], Result]) -> Result:
    """Return or raise what `call` does, without anything that it logs."""
    from airflow.utils.cli import suppress_logs_and_warning

    results: list[Result] = []

    def keep(options: Namespace) -> None:
        results.append(call())

    suppress_logs_and_warning(keep)(Namespace(verbose=False))
    return results[0]


def masked(value: Value) -> Value:
    """`value` with ``***`` for each secret that Airflow knows, in all texts of a document, too."""
    return _masked(value)  # type: ignore[no-any-return]


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        from airflow.sdk.log import redact  # type: ignore[attr-defined]

        return str(redact(value))
    if isinstance(value, BaseModel):
        # Not by redact, which would hide fields by their names, such as `tokens`.
        return value.model_copy(update={name: _masked(inner) for name, inner in value})
    return tuple(map(_masked, value)) if isinstance(value, tuple) else value
