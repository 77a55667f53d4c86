# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.chaos.kubernetes.shared_page FILE NOTE``: the kills of DAG runs that share a cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.table import machine

from .page import points_of, summary_of, table_of

_HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Kills with a cluster that tasks share

`make shared-kills` runs one DAG run a round, blocking or deferrable: `CreateRayCluster`, three batch
inferences that take its output (generate, judge and embed, each from the dataset of the one before), and
`DeleteRayCluster`. One process of one task gets SIGKILL at a call to Kubernetes or to the Jobs API. Real
are: operators, triggers, Kubernetes client, Jobs API client and sweeper, each in processes of their own;
and HTTP. **Stand-ins** are: Kubernetes and KubeRay (`tests/support/kubernetes/`), the head, which is a fake
Jobs API whose jobs write twelve rows each, and Airflow's scheduler and database
(`tests/chaos/kubernetes/airflow.py`, `dag_run.py`).

A round is *good* if all of this holds. Each batch wrote each row, in one job. There was one cluster,
or two where the setup's successor came after the first had ended. The run succeeded, unless a killed
process had no successor, or the successor of a batch came two days later, when the lease was over; then
that task failed and named the setup to clear. Nothing was left after the teardown. Where the setup or the
teardown itself had no successor, no RayCluster and no pod was left after the lease, and nothing at all
after the sweeper. *Tries*, *clusters* and *jobs* count the whole run. Pauses between two looks are
shortened, and the clock of the API server is set forward over the lease.
"""


def page(lines: Sequence[dict[str, Any]], note: str) -> Iterator[str]:
    """Yield the page's lines."""
    yield _HEAD
    versions = ", ".join(dict.fromkeys(one["version"] for one in lines))
    yield f"{machine()} Of commit {versions}. {note}".rstrip()
    yield f"\n{summary_of(lines)}\n"
    yield from table_of(lines)
    yield "\n## By the call that is struck\n"
    yield from points_of(lines)
    for one in lines:
        if one["flaws"]:
            yield f"\nFlawed: {one['told']}: {', '.join(one['flaws'])}"


def main() -> None:
    file, note = sys.argv[1:]
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    print(*page(sorted(lines, key=lambda one: one["seed"]), note), sep="\n")


if __name__ == "__main__":
    main()
