# SPDX-License-Identifier: Apache-2.0
"""What 1,000 deferred tasks ask of one head, and how late they see ends, with and without their shared pace.

Run ``python benchmarks/deferred_jobs.py [JOBS]`` in an environment that has the provider and the tests. The
followers are the provider's own. The head is a *stand-in*, not Ray, which answers 100 requests a second, one
after the other. The clock is simulated, so the figures are the same on a busy machine. "Without the pace" is
the same code without the bounds of ``cluster/jobs_api/pace.py``: each job is polled every ten seconds, and
its log is read with each poll. Writes ``benchmarks/results/deferred_jobs.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from airflow_provider_raybatch.cluster.jobs_api import pace
from tests.support.stepped_heads import Head, follow_all, p95

ANSWERS_A_SECOND = 100.0
RESULT = Path(__file__).parent / "results/deferred_jobs.md"


def measure(jobs: int, triggerers: int, *, is_paced: bool) -> dict[str, float]:
    """Follow `jobs` jobs by processes with equal shares of them; the sums, and the latest p95."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_paced:
            patch.setattr(pace, "_REQUESTS", 1e9)
            patch.setattr(pace, "_AT_ONCE", jobs)
        each = [(jobs // triggerers, ANSWERS_A_SECOND)] * triggerers
        heads: list[Head] = follow_all(patch, *each, is_one_head=True)
    polls, logs = (sum(head.requests(kind) for head in heads) for kind in ("status", "log"))
    late = [seconds for head in heads for seconds in head.late]
    return {
        "requests a second": polls + logs,
        "polls a second": polls,
        "reads of logs a second": logs,
        "until an end is seen, p50, s": sorted(late)[len(late) // 2],
        "until an end is seen, p95, s": p95(late),
    }


def main(arguments: list[str]) -> None:
    """See the module docstring."""
    jobs = int(arguments[0]) if arguments else 1000
    unpaced, paced, two = (
        measure(jobs, triggerers, is_paced=is_paced)
        for triggerers, is_paced in ((1, False), (1, True), (2, True))
    )
    rows = [
        f"| {title} | {paced[title]:.1f} | {unpaced[title]:.1f} | {paced[title] / unpaced[title]:.2f} "
        f"| {two[title]:.1f} |"
        for title in paced
    ]
    text = "\n".join([
        "# Deferred tasks on one head",
        "",
        "| | as it is | without the pace | ratio | as it is, two triggerers |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"{jobs:,} running jobs with a `poll_interval` of 10 s. The head is a stand-in, not Ray, and answers "
        f"{ANSWERS_A_SECOND:g} requests a second, one after the other; the clock is simulated. Without the "
        "pace, 200 a second are due, so half of them are late.",
        "",
        "Made by `python benchmarks/deferred_jobs.py`.",
        "",
    ])
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
