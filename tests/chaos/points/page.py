# SPDX-License-Identifier: Apache-2.0
"""The results of aimed strikes as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..plan import MODES
from ..table import machine
from .catalogue import BATCH, POINTS, ROWS, SIGNALS, STORES

_HEAD = f"""<!-- SPDX-License-Identifier: Apache-2.0 -->
# Kill points

`make kill-points` strikes a process of a batch inference between two steps, at each point below in each
mode and on each store: by SIGKILL, and by SIGSTOP with a SIGCONT after another process has taken over and the
DAG run has succeeded. Supervisors of a frozen process are frozen with it, and a task whose driver is frozen
is cleared, as a user would do. Each run has {ROWS} rows, {BATCH} a part, and one `echo` engine.
`tests/chaos/points/catalogue.py` has the points, `tests/chaos/points/striking.py` the checks.

A run is *good* if its task succeeded and returned the dataset that the journal names; that has each row once
with the right answer; `manifest.json` is the journal's manifest; each run token committed at most once; no
job is left running; the response store has lost nothing and has no wrong response; and the engines began a
request for each row exactly once (where a replica was killed, at most the rows in flight more). After
SIGCONT all of that still holds, and dataset, journal and XCom are the same as before. A point that was never
hit is a flaw.
"""


def page(lines: Sequence[dict[str, Any]], note: str = "") -> Iterator[str]:
    """Yield a table of all cells, and the runs with flaws."""
    yield _HEAD
    yield f"{machine()} {note}".rstrip()
    bad = [line for line in lines if line["flaws"]]
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    yield f"\n{len(lines)} runs of commit {commits}, {len(bad)} of them with flaws.\n"
    cells = [(mode, store) for mode in MODES for store in STORES]
    for signal in SIGNALS:
        yield f"## SIG{signal}\n"
        titles = [f"{mode}, {store}" for mode, store in cells]
        yield f"| point | process | between | {' | '.join(titles)} |"
        yield "| --- | --- | --- |" + " --- |" * len(cells)
        for point in POINTS.values():
            if signal == "KILL" or point.freezes:
                before, _, after = point.between.partition(" | ")
                marks = [_cell(lines, point.name, signal, *cell) for cell in cells]
                yield (
                    f"| `{point.name}` | {point.where} | {before}, and {after} | " + " | ".join(marks) + " |"
                )
        yield ""
    yield (
        "Figures are requests that the engines began, jobs, and tries of the task. A replica is not frozen: "
        "its rows go to no other replica while it lives.\n"
    )
    if bad:
        yield "## Flaws\n"
        for line in bad:
            cell = f"SIG{line['signal']} at {' + '.join(line['points'])}, {line['mode']}, {line['store']}"
            yield f"- {cell} ({line['commit']}): {', '.join(line['flaws'])}"


def _cell(lines: Sequence[dict[str, Any]], point: str, signal: str, mode: str, store: str) -> str:
    if mode not in POINTS[point].modes:
        return "does not come by"
    wanted = {"signal": signal, "mode": mode, "store": store}
    of_cell = [line for line in lines if wanted.items() <= line.items() and line["points"][-1] == point]
    if not of_cell:
        return "not run"
    flawed = [line for line in of_cell if line["flaws"]]
    last = of_cell[-1]
    word = f"FLAWED ({len(flawed)} of {len(of_cell)})" if flawed else "good"
    return f"{word}: {last['generated']}, {last['jobs']}, {last['tries']}"
