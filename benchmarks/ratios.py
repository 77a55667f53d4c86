# SPDX-License-Identifier: Apache-2.0
"""Writes ``docs/performance.md`` and its plot from the runs in ``benchmarks/results/ratios/``.

Each file there is one run: what made it, on which machine, with which versions, and its `ratios`. A ratio is
the time of a yardstick by the time of the job, so more is better; where a run has several, `each` has all and
`ratios` their median. Add a file for a new run, and run ``python benchmarks/ratios.py``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "benchmarks/results/ratios"
PAGE = ROOT / "docs/performance.md"
PLOT = ROOT / "docs/images/ratios.png"

TARGETS = {
    "LLM.generate to job, W1": 1.0,
    "LLM.generate to job, W1, 4 cores": 1.0,
    "LLM.generate to job, W2": 1.05,
    "LLM.generate to job, W2-unknown": 0.99,
    "LLM.chat to job, W1": None,
    "LLM.chat to job, W2": None,
    "two GPUs to one, W1": 1.95,
    "two GPUs to one, W2": 1.95,
    "two GPUs to one, W2 twice": 1.95,
    "two GPUs to one, W1, warm engines": 1.95,
    "two GPUs to one, W2, warm engines": 1.95,
    "two GPUs to one, W2 twice, warm engines": 1.95,
    "all rows to half of them, W1": None,
    "all rows to half of them, W2": None,
    "all rows to half of them, W2, LLM.generate": None,
    "ideal to eight echo replicas that start late": 0.95,
    "Ray Data LLM to job, W3": 1.5,
    "sorted LLM.generate to job, W3": 0.95,
    "all tokens to forced tokens, W1 with choices": 1.25,
    "script to job, first request": None,
    "job to warm engine, first request": None,
}
"""The least that each ratio shall be, in the order of the page; ``None`` for those without such a figure."""

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by benchmarks/ratios.py from the files in benchmarks/results/ratios. -->
# Performance

Each figure is a ratio measured in one run on one machine: the time of a yardstick by the time of the job, so
more is better. The yardstick is the engine alone (`LLM.generate` of prompts that are rendered before, in
memory, with nothing read or written), the job itself on fewer GPUs, or Ray Data LLM. Where a run has several
values, their median comes first. How the runs were made, and what limits them, is in `benchmarks/results/`.
*All rows to half of them*, on one GPU, is the most that two can reach with all rows in their engines at once.
Two GPUs of one host can differ by 8 %, and one by its own warmth, so a pair can say 2.1 or 1.7.
A figure is of the commit in its line; code that is newer was not measured.

Workloads, of a model of the shape of Llama 3.1 8B with random weights: W1 is 32,768 rows with 8 tokens out,
W2 is 3,072 rows with 16 to 1,024 tokens out (6,144 rows in *twice*; in
*unknown*, nothing says how long an answer is), W3 is four questions on each of 1,000
documents of 2,000 tokens.

![Ratios of all runs, with their targets](images/ratios.png)

| ratio | target | latest run | is | of |
| --- | ---: | --- | --- | --- |
"""
_RUNS = """
## Runs

| date | made by | commit | machine | versions | ratios |
| --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Ran:
    """One run.

    :param each: all values of each ratio.
    :param ratios: the median of each.
    """

    made_by: str
    date: str
    commit: str | None
    machine: str
    versions: dict[str, str]
    each: dict[str, list[float]]
    ratios: dict[str, float]

    def shown(self, name: str) -> str:
        """One of its ratios, and its values if it has several."""
        several = self.each[name]
        whole = f" ({', '.join(f'{one:.3f}' for one in several)})" if len(several) > 1 else ""
        return f"{self.ratios[name]:.3f}{whole}"


def runs() -> list[Ran]:
    """All runs, the oldest first."""
    return [Ran(**json.loads(path.read_text())) for path in sorted(RUNS.glob("*.json"))]


def page(made: list[Ran]) -> str:
    """The page, without its plot."""
    rows = []
    for name, target in TARGETS.items():
        latest = [one for one in made if name in one.ratios][-1]
        state = "" if target is None else "met" if latest.ratios[name] >= target else "missed"
        least = "" if target is None else f"{target:.2f}"
        commit = latest.commit or "commit not noted"
        rows.append(f"| {name} | {least} | {latest.shown(name)} | {state} | {latest.date}, {commit} |")
    table = []
    for one in made:
        versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        found = "; ".join(f"{name}: {one.shown(name)}" for name in one.ratios)
        cells = [
            one.date,
            f"`benchmarks/{one.made_by}`",
            one.commit or "not noted",
            one.machine,
            versions,
            found,
        ]
        table.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(rows) + "\n" + _RUNS + "\n".join(table) + "\n"


def plot(made: list[Ran]) -> None:
    """Draw a line for each ratio, with a dot for each value and a bar for its target."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes: Any = figure.subplots()
    names = list(reversed(TARGETS))
    for place, name in enumerate(names):
        values = [value for one in made for value in one.each.get(name, ())]
        axes.plot(values, [place] * len(values), "o", color="tab:blue", alpha=0.6)
        if (target := TARGETS[name]) is not None:
            axes.plot([target], [place], "|", color="tab:red", markersize=16, markeredgewidth=2)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("time of the yardstick by time of the job; red: target")
    axes.grid(axis="x", alpha=0.4)
    figure.savefig(PLOT, dpi=110, metadata={"Software": None})


def main() -> None:
    made = runs()
    PAGE.write_text(page(made), encoding="utf-8")
    plot(made)


if __name__ == "__main__":
    main()
