# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal, or for a pipe. Text of rows is never taken for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_provider_raybatch.cli.terminal import steady
from airflow_provider_raybatch.contract.preview import Findings

_WIDTH_OF_A_PIPE = 120


def console() -> Console:
    """Where output goes: as wide as the terminal."""
    made = Console(highlight=False, markup=False, emoji=False)
    return (
        made
        if made.is_terminal
        else Console(highlight=False, markup=False, emoji=False, width=_WIDTH_OF_A_PIPE)
    )


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
    made = Table(show_edge=False)
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if place in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(steady(one)) for one in row))
    to.print()
    to.print(Text(title))
    to.print(made)


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
