# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.table RESULTS``: the results file as a page of tables."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..integration.end_to_end.stack import INTERVALS
from . import results
from .cluster import RAY_INTERVALS
from .plan import KINDS
from .runs import MOST_GENERATED, Result
from .stopping import LONGEST

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Chaos

`make chaos SEEDS=0:100` kills processes with SIGKILL at random instants of batch inferences, and counts what
that cost: an Airflow with all its components, a Ray cluster of a head and two worker nodes with addresses of
their own, the `echo` engine on two replicas. A seed decides who is killed, when, and in which mode the task
follows its job; several runs share Airflow and cluster at a time. How each figure is counted is told in
`tests/chaos/runs.py`, who is killed how in `tests/chaos/plan.py`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="chaos.table", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--note", default="", help="what else there is to say about the machine")
    given = parser.parse_args()
    runs, stops = results.read(given.results)
    print("\n".join(page(runs, stops, given.note)))


def page(runs: Sequence[Result], stops: Sequence[dict[str, Any]], note: str = "") -> Iterable[str]:
    yield _HEAD
    yield f"`{results.summary(runs, stops)}`\n"
    yield f"{_machine()} {note}".rstrip() + "\n"
    yield "## Kills\n"
    yield (
        f"`generated_ratio` is generated / (rows + rows in flight at the kills), at most {MOST_GENERATED};"
        " `generated / rows` leaves those in flight aside. While generating: some rows had "
        "been generated when it happened, and not all. Lost, duplicated and wrong are rows.\n"
    )
    yield (
        "| killed | runs | while generating | succeeded | lost | duplicated | wrong "
        "| largest generated_ratio | mean generated / rows | median extra seconds | most jobs of a run |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for kind in KINDS:
        of_kind = [one for one in runs if one.kind == kind]
        if of_kind:
            yield _row(kind, of_kind)
    if runs:
        yield _row("all", runs)
    if stops:
        yield "\n## Stops\n"
        yield (
            f"From the deed to the job's end and its replicas' death, in seconds; {LONGEST:.0f} are allowed. "
            "Rows kept are good rows in the ledger, with which a later attempt goes on.\n"
        )
        yield "| way | mode | intervals | job | stop_s | rows kept |"
        yield "| --- | --- | --- | --- | ---: | ---: |"
        for one in stops:
            cells = [one[name] for name in ("way", "mode", "intervals", "status", "stop_s", "rows_kept")]
            yield f"| {' | '.join(str(cell) for cell in cells)} |"
    yield "\n## Intervals\n"
    yield "Airflow's defaults suit clusters; these are lowered:\n"
    for name, value in INTERVALS.items():
        section, _, option = name.partition("__")
        yield f"- `[{section.lower()}] {option.lower()}` = {value}"
    yield "\nRay's, of which the first two are lowered:\n"
    for name, value in RAY_INTERVALS.items():
        yield f"- `{name}` = {value}"


def _row(kind: str, runs: Sequence[Result]) -> str:
    cells = [
        kind,
        len(runs),
        sum(0 < one.before < one.rows for one in runs),
        sum(one.state == "success" for one in runs),
        sum(one.lost for one in runs),
        sum(one.duplicated for one in runs),
        sum(one.wrong for one in runs),
        f"{max(one.generated_ratio for one in runs):.3f}",
        f"{statistics.mean(one.generated / one.rows for one in runs):.3f}",
        f"{statistics.median(one.seconds - one.expected for one in runs):.0f}",
        max(one.submissions for one in runs),
    ]
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in ("apache-airflow", "ray"))
    return (
        f"On a machine with {os.cpu_count()} CPU cores and {memory:.0f} GiB, "
        f"Python {platform.python_version()}, {packages}."
    )


if __name__ == "__main__":
    main()
