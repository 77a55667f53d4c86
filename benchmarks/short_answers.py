# SPDX-License-Identifier: Apache-2.0
"""Rows with short answers in the simulated cluster: how close to each other engines end.

Of such rows an engine answers so many a second that a second's rows are in it all the time, and can't be
given back. An engine answers its rows in their order, at a pace that differs from GPU to GPU and from second
to second. Seeded. Made for the numbers of W1 on H100s (`throughput/workloads.py`).

python benchmarks/short_answers.py
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from simulated_cluster import Case, Pulling

SEED, JOBS = 20261126, 40
PACE, SLOTS = 1310.0, 1280
"""Rows a second, and rows in an engine."""
SECONDS = 1000
"""More than a job takes."""


class Cluster(NamedTuple):
    """What differs from line to line.

    :param rows: of the job.
    :param replicas: that share them.
    :param slots: rows in an engine.
    :param unlike: standard deviation of the paces of the replicas, as a part of `PACE`.
    :param noise: the same of the pace from second to second.
    :param late: seconds after the first in which the others begin, at random.
    """

    rows: int = 32_768
    replicas: int = 2
    slots: int = SLOTS
    unlike: float = 0.03
    noise: float = 0.1
    late: float = 0.9


CLUSTERS = {
    "W1, 2 GPUs": Cluster(),
    "calm": Cluster(noise=0.03),
    "one GPU 8 % faster": Cluster(unlike=0.06, noise=0.05),
    "GPUs of different kinds": Cluster(unlike=0.2),
    "one up to 5 s late": Cluster(late=5),
    "256 rows in an engine": Cluster(slots=256),
    "8,192 rows": Cluster(rows=8192),
    "65,536 rows, 4 GPUs": Cluster(rows=65_536, replicas=4),
    "131,072 rows, 8 GPUs": Cluster(rows=131_072, replicas=8),
}


class InOrder(Pulling):
    """Engines that answer one row after the other.

    :param paces: rows a second, of each engine in each second.
    """

    def __init__(self, case: Case, paces: np.ndarray) -> None:
        super().__init__(case)
        self._paces: list[list[float]] = paces.tolist()
        self._done = [0.0] * len(self.replicas)
        """When each engine has answered all rows that are in it."""

    def begin(self, now: float, number: int) -> None:
        """Let waiting rows go into the engine."""
        replica = self.replicas[number]
        while replica.free and replica.waiting:
            row = replica.waiting.popleft()
            replica.free -= 1
            self._done[number] = self._after(number, max(now, self._done[number]))
            self.at(self._done[number], self.ended, number, row)

    def _after(self, number: int, at: float) -> float:
        """When the engine has answered one more row."""
        paces, left = self._paces[number], 1.0
        while (answered := paces[int(at)] * (int(at) + 1 - at)) < left:
            left -= answered
            at = float(int(at) + 1)
        return at + left / paces[int(at)]


def job(cluster: Cluster, number: int) -> InOrder:
    """One of the jobs of a line."""
    random = np.random.default_rng([SEED, number])
    starts = np.concatenate([[0.0], random.uniform(0, cluster.late, cluster.replicas - 1)])
    means = PACE * (1 + cluster.unlike * random.standard_normal(cluster.replicas))
    noise = 1 + cluster.noise * random.standard_normal((cluster.replicas, SECONDS))
    paces = means[:, None] * np.clip(noise, 0.6, 1.6)
    return InOrder(Case("", cluster.slots, np.ones(cluster.rows, dtype=int), starts, means), paces)


@dataclasses.dataclass
class Ends:
    """Of all jobs of a line.

    :param seconds: until the last engine ends.
    :param apart: the part of them by which the first one ends before that.
    """

    seconds: np.ndarray
    apart: np.ndarray


def ends(cluster: Cluster, jobs: int = JOBS) -> Ends:
    """Simulate the jobs of a line."""
    found = [job(cluster, number).run() for number in range(jobs)]
    seconds = np.array([each.max() for each in found])
    return Ends(seconds, 1 - np.array([each.min() for each in found]) / seconds)


def main() -> None:
    """Print the table."""
    print("| | seconds | ends apart, % | in a tenth of the jobs at least | of more than 3 % |")
    print("|---|---|---|---|---|")
    for name, cluster in CLUSTERS.items():
        found = ends(cluster)
        percent: np.ndarray = 100 * found.apart
        cells = [
            name,
            f"{found.seconds.mean():.2f}",
            f"{percent.mean():.1f}",
            f"{np.quantile(percent, 0.9):.1f}",
            f"{(percent > 3).sum()} of {JOBS}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
