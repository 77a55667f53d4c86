# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.batch_api.page RESULTS``: write the results file as a page of tables."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import results
from ..table import machine
from ..version import DIRTY
from .plan import KINDS, TRIGGERER

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Kills beside clients of the Batch API

`make batch-kills` kills processes with SIGKILL while users upload files, create batches, poll, cancel, list
and read them through the official client: two API servers behind a load balancer, over one root on a disk; an
Airflow with all its components and PostgreSQL; a Ray cluster; two models of the `echo` engine, one of which
has deferred tasks. A seed selects what is killed, when, and what users do (`tests/chaos/batch_api/plan.py`).
What was killed is started again after one to five seconds.
"""
_CHECKS = """
At the end of each round (`tests/chaos/batch_api/checking.py`, `asked.py`, `rounds.py`):

- Each batch whose id a client got, and each batch that a list shows, has ended: completed, or cancelled where
  a server had accepted that. Each create made one batch, also where the client repeated it, and each batch
  has one DAG run.
- Each line of the input is once in the output or the error file, with the answer to its text; of a cancelled
  batch, the lines without an answer are `batch_cancelled`.
- No look at a batch, at whichever server, shows an earlier state, a smaller count or another time than a look
  that had ended before it began. Both servers give the same bytes of a batch that has ended.
- A request is asked again only if a kill took its engine or driver while no part held its answer. `in flight`
  counts those; of the others, each is asked once, and never by two jobs side by side.
- Each listed file has its content, and each upload is what was sent. After a sweep nothing is left that
  belongs to no record; `strays` are what it deleted, of uploads that were cut off.
- A user whose client gives up is a flaw, too, although nothing is lost by it: an `APIConnectionError` is the
  end of its retries while no server answers.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="batch_api.page", description=__doc__)
    parser.add_argument("results", type=Path)
    given = parser.parse_args()
    print("\n".join(page(results.read_lines(given.results))))


def page(rounds: Sequence[dict[str, Any]]) -> Iterable[str]:
    """Yield the lines of the page.

    :raises ValueError: the rounds are of several versions.
    """
    versions = {one["version"] for one in rounds}
    if len(versions) != 1 or any(version.endswith(DIRTY) for version in versions):
        raise ValueError(f"results: the rounds are of {sorted(versions)}; make a page of one commit.")
    hits = [hit for one in rounds for hit in one["kills"]]
    flaws = [f"seed {one['seed']}: {flaw}" for one in rounds for flaw in one["flaws"]]
    yield _HEAD
    counts = " ".join(
        f"{name}={sum(one[name] for one in rounds)}"
        for name in ("batches", "completed", "cancelled", "lines", "answers", "in_flight", "again")
    )
    yield f"`batch-kills: kills={len(hits)} flaws={len(flaws)} {counts}`\n"
    yield f"Of commit {versions.pop()}. {machine()}"
    yield _CHECKS
    yield "| killed | kills | how |"
    yield "| --- | ---: | --- |"
    for kind in (*KINDS, TRIGGERER):
        of_kind = [hit for hit in hits if hit["kind"] == kind]
        hows = Counter(_how(hit) for hit in of_kind)
        yield f"| {kind} | {len(of_kind)} | {', '.join(f'{how}: {n}' for how, n in sorted(hows.items()))} |"
    names = (
        "batches", "completed", "cancelled", "lines", "answers", "requests", "in_flight", "again", "files",
        "strays", "looks", "seconds", "slowest",
    )  # fmt: skip
    yield f"\n| seed | kills | {' | '.join(names).replace('_', ' ')} | flaws |"
    yield "| ---: |" + " ---: |" * (len(names) + 2)
    for one in rounds:
        cells = [one["seed"], len(one["kills"]), *(one[name] for name in names), len(one["flaws"])]
        yield f"| {' | '.join(map(str, cells))} |"
    calls = sum((Counter(one["counts"]) for one in rounds), Counter[str]())
    yield "\nCalls of clients, and what became of them:\n"
    yield from (f"- {name}: {count:,}" for name, count in sorted(calls.items()))
    if flaws:
        yield "\nFlaws:\n"
        yield from (f"- {flaw}" for flaw in flaws)


def _how(hit: dict[str, Any]) -> str:
    if hit["kind"] == "server":
        which = "both" if "+" in hit["taken"] else "one"
        return f"{which} during {'a create' if hit['moment'] == 'recorded' else hit['moment']}"
    return "with engines" if hit["kind"] == "driver" and " 0 " not in hit["taken"] else str(hit["taken"])


if __name__ == "__main__":
    main()
