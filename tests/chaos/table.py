# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.table RESULTS``: write the results file as a page of tables."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from . import results
from .lake import SHARE
from .places import PHASES
from .plan import FAULTS, KINDS
from .result import Result
from .stopping import LONGEST

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Chaos

`make chaos SEEDS=0:100` kills processes with SIGKILL at random instants of batch inferences, and counts their
cost: an Airflow with all its components, a Ray cluster of a head and two worker nodes with their own
addresses, the `echo` engine on two replicas or three. A seed selects the victim, the time, and the mode in
which the task follows its job; several runs share Airflow and cluster. `tests/chaos/plan.py` has the kills,
`tests/chaos/runs.py` and `tests/chaos/counting.py` the counts.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos.table", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--note", default="", help="a remark on the machine")
    given = parser.parse_args()
    runs, stops = results.read(given.results)
    print("\n".join(page(runs, stops, given.note)))


def page(runs: Sequence[Result], stops: Sequence[dict[str, Any]], note: str = "") -> Iterable[str]:
    """Yield the lines of the page.

    :raises ValueError: the results are from several versions.
    """
    commit = results.of_one_version(runs, stops)
    yield _HEAD
    yield f"`{results.summary(runs, stops)}`\n"
    yield f"Of commit {commit}. {machine()} {note}".rstrip() + "\n"
    yield "## Kills\n"
    yield (
        "Every run is counted; missed are those whose kill came too late or which could not be judged. The "
        "phases are what the job's folder held at the instant of the kill. Left are engines that were there "
        "after the time for which they were kept. `tests/chaos/counting.py` explains the other counts. "
        f"{sum(one.replicas > 2 for one in runs)} runs had three replicas that started one after another. "
        f"{sum(one.store == 's3' for one in runs)} runs had their data in an S3 server with {SHARE:.0%} of "
        "its calls going wrong. Kinds after `head` are other faults; `none` sets the pace.\n"
    )
    columns = [
        *("killed", "runs", *PHASES, "missed", "succeeded", *_TOTALS),
        *("median extra seconds", "most jobs of a run"),
    ]
    yield f"| {' | '.join(columns).replace('_', ' ')} |"
    yield "| --- |" + " ---: |" * (len(columns) - 1)
    for kind in dict.fromkeys((*KINDS, *FAULTS, *(one.kind for one in runs))):
        of_kind = [one for one in runs if one.kind == kind]
        if of_kind:
            yield _row(kind, of_kind)
    if runs:
        yield _row("all", runs)
    flawed = [one for one in runs if one.flaws]
    if flawed:
        yield "\nRuns with flaws:\n"
        for one in flawed:
            yield f"- {one}"
    if stops:
        yield "\n## Stops\n"
        yield (
            f"From the deed to the job's end and its replicas' death, in seconds; {LONGEST:.0f} are allowed. "
            "Rows kept are good rows in the ledger, with which a later attempt goes on.\n"
        )
        yield "| way | mode | job | stop_s | rows kept |"
        yield "| --- | --- | --- | ---: | ---: |"
        for one in stops:
            cells = [one[name] for name in ("way", "mode", "status", "stop_s", "rows_kept")]
            yield f"| {' | '.join(str(cell) for cell in cells)} |"
    yield (
        "\nAirflow polls more often than by default (`INTERVALS` in "
        "`tests/integration/end_to_end/stack.py`), and Ray misses a node sooner (`RAY_INTERVALS` in "
        "`tests/chaos/cluster.py`)."
    )


_TOTALS = (
    "lost", "duplicated", "wrong", "lost_engines", "rows", "needed", "asked", "generated",
    "in_flight", "overdue", "unexplained", "late", "left",
)  # fmt: skip


def _row(kind: str, runs: Sequence[Result]) -> str:
    cells = [
        kind,
        len(runs),
        *(sum(one.phase == phase for one in runs) for phase in PHASES),
        sum(bool(one.missed) for one in runs),
        sum(one.state == "success" for one in runs),
        *(sum(getattr(one, name) for one in runs) for name in _TOTALS),
        f"{statistics.median(one.seconds - one.expected for one in runs):.0f}",
        max(one.submissions for one in runs),
    ]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def machine() -> str:
    """Return a sentence about this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("apache-airflow", "ray"))
    return (
        f"On a machine with {os.cpu_count()} CPU cores and {memory:.0f} GiB, "
        f"Python {platform.python_version()}, {packages}."
    )


if __name__ == "__main__":
    main()
