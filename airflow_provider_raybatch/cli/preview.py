# SPDX-License-Identifier: Apache-2.0
"""``raybatch preview``: some rows as a job would ask them."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from airflow_provider_raybatch.cli.preview_job import run_preview_job
from airflow_provider_raybatch.cli.tables import console, show_findings
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.events import Previewed, RowPreviewed
from airflow_provider_raybatch.contract.preview import Preview, PreviewRequest, PreviewRow
from airflow_provider_raybatch.contract.text import clean, count_of

_KEY_DIGITS = 16


def show_preview(options: Namespace) -> None:
    """Look at rows, and write them."""
    given = {"rows": options.rows, "seed": options.seed}
    wanted = parse(PreviewRequest, {"verb": "preview", **given})
    task, events = run_preview_job(options, wanted)
    rows = [event.row for event in events if isinstance(event, RowPreviewed)]
    end = next(event.preview for event in events if isinstance(event, Previewed))
    if options.json:
        document = {"task": task.title, "notes": task.notes, **end.model_dump(mode="json")}
        document["shown"] = [row.model_dump(mode="json") for row in rows]
        print(json.dumps(document, ensure_ascii=False))
        return
    to = console()
    to.print(Text(_title(task.title, end, options.seed), style="bold"))
    for row in rows:
        _show(to, row)
    show_findings(to, end, task.notes)


def _title(title: str, end: Preview, seed: int | None) -> str:
    if end.rows is None:
        return clean(f"{title}: no row could be read")
    how = "the first" if seed is None else f"a random sample (seed {seed}) of"
    return clean(f"{title}: {how} {end.rows_shown:,} of {count_of(end.rows, 'row')}")


def _show(to: Console, row: PreviewRow) -> None:
    to.print()
    to.print(Text(" | ".join(_facts(row)), style="bold red" if row.failure else "bold cyan"))
    for message in row.messages:
        role = f"{message.role}: " if message.role else ""
        to.print(Padding(Text.assemble((role, "green"), clean(message.text)), (0, 0, 0, 2), expand=False))


def _facts(row: PreviewRow) -> Sequence[str]:
    facts = [f"row {row.ordinal:,}"]
    facts += [f"id {clean(row.row_id)}"] if row.row_id is not None else []
    if row.tokens is not None:
        cut = f", {row.cut_tokens:,} cut off" if row.cut_tokens else ""
        facts.append(f"{count_of(row.tokens, 'token')}{cut}")
    facts += [f"key {row.key[:_KEY_DIGITS]}"] if row.key else []
    facts += [f"answered by an {row.answered}".replace("an response", "the response")] if row.answered else []
    facts += [f"asks what row {row.same_as:,} asks"] if row.same_as is not None else []
    facts += [f"sampling {clean(row.sampling)}"] if row.sampling else []
    facts += [f"FAILS in step {clean(row.failure)}"] if row.failure else []
    return facts
