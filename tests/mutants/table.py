# SPDX-License-Identifier: Apache-2.0
"""Writes the results as a page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from .listed import AREAS
from .scratch import ROOT
from .verdicts import Result

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Mutants

`make mutants` breaks one place of the safety code at a time, in a copy, and runs the fast tests that
should notice (`tests/mutants/`). Each mutant is a way in which a change could really break a promise.
It is killed when a test fails. One that no test notices is in this table with the reason why it breaks
nothing, or `make mutants` fails. Before, the same tests must pass on the code as it is.
"""


def page(results: Sequence[Result]) -> Iterable[str]:
    """Yield the lines of ``benchmarks/results/mutants.md``."""
    yield _HEAD
    yield f"`{summary(results)} commit={_commit()}`"
    of = {result.mutant.name: result for result in results}
    for area, mutants in AREAS.items():
        found = [of[mutant.name] for mutant in mutants if mutant.name in of]
        if found:
            yield f"\n## {area}\n"
            yield "| mutant | what it would lose | noticed by |"
            yield "| --- | --- | --- |"
            yield from (_row(result) for result in found)


def summary(results: Sequence[Result]) -> str:
    """Return one line of counts."""
    counts = {name: sum(one.verdict == name for one in results) for name in ("killed", "hangs", "equivalent")}
    counted = " ".join(f"{name}={count}" for name, count in counts.items())
    return f"mutants={len(results)} {counted} others={len(results) - sum(counts.values())}"


def _row(result: Result) -> str:
    mutant = result.mutant
    noticed = result.killer.removeprefix("tests/unit/").partition("[")[0]
    labels = {
        "killed": f"`{noticed}`",
        "hangs": f"`{noticed}` (it hangs)" if noticed else "the time limit (it hangs)",
        "equivalent": f"none, and need not be: {mutant.equivalent}",
    }.get(result.verdict, f"**{result.verdict}**")
    return f"| {mutant.name} | {mutant.loses} | {labels} |"


def _commit() -> str:
    completed = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return completed.stdout.strip() or "unknown"
