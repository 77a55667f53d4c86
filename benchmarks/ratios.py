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

See how fast a job is beside the engine alone, on more GPUs, and beside Ray Data LLM. Each figure is a ratio
measured in one run on one machine: the time of a yardstick by the time of the job, so more is better.

| workload | of a model of the shape of Llama 3.1 8B with random weights |
| --- | --- |
| W1 | 32,768 rows, 8 tokens out |
| W2 | 3,072 rows, 16 to 1,024 tokens out; *twice*: 6,144 rows; *unknown*: lengths of answers not known |
| W3 | four questions on each of 1,000 documents of 2,000 tokens |

- `LLM.generate` is the engine alone: prompts rendered before, in memory, nothing read or written.
- *All rows to half of them*, on one GPU, is the most that two GPUs can reach.
- Two GPUs of one host can differ by 8 %, and one by its own warmth, so a pair can say 2.1 or 1.7.
- Code that is newer than a figure's commit was not measured.

![Ratios of all runs, with their targets](images/ratios.png)

The table has the latest run of each ratio: the median first, then all values. The plot has all runs; their
files are in `benchmarks/results/ratios/`. These pages say how they were made, and what limits them:
[throughput](../benchmarks/results/throughput.md), [two GPUs](../benchmarks/results/two_gpus.md),
[common prefixes](../benchmarks/results/common_prefixes.md), [start-up](../benchmarks/results/start_up.md).

| ratio | target | latest run | is | of | machine |
| --- | ---: | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Ran:
    """One run.

    :param file: its name.
    :param each: all values of each ratio.
    :param ratios: the median of each.
    """

    file: str
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
    return [Ran(path.name, **json.loads(path.read_text())) for path in sorted(RUNS.glob("*.json"))]


def page(made: list[Ran]) -> str:
    """The page, without its plot."""
    rows: list[str] = []
    versions: set[tuple[str, str]] = set()
    for name, target in TARGETS.items():
        latest = [one for one in made if name in one.ratios][-1]
        state = "" if target is None else "met" if latest.ratios[name] >= target else "missed"
        least = "" if target is None else f"{target:.2f}"
        of = ", ".join(filter(None, [latest.date, latest.commit]))
        link = f"[{of}](../benchmarks/results/ratios/{latest.file})"
        rows.append(f"| {name} | {least} | {latest.shown(name)} | {state} | {link} | {latest.machine} |")
        versions |= latest.versions.items()
    tail = ", ".join(f"{name} {version}" for name, version in sorted(versions))
    return _HEAD + "\n".join(rows) + f"\n\nVersions: {tail}.\n"


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
