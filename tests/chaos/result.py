# SPDX-License-Identifier: Apache-2.0
"""What a run came to: one line of the results file, whatever happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Result:
    """One line of the results file.

    :param kind: what was killed for this run; ``none`` for a run that only sets the pace.
    :param store: ``disk``, or ``s3`` with faults.
    :param replicas: engines side by side.
    :param missed: why nothing was killed for it, or its check raised; ``""`` when all went as planned.
    :param instant: seconds from the run's submission to its own kill, measured at that kill.
    :param phase: of its job at that instant, by what its folder held; ``""`` without a kill.
    :param before: rows that had been generated at that instant.
    :param hits: all kills while it ran, its own included.
    :param lost_engines: its engines that those took.
    :param seconds: from submission to the DAG run's end.
    :param expected: seconds that a run takes undisturbed.
    """

    seed: int
    kind: str
    mode: str
    store: str
    with_family: bool
    version: dict[str, str]
    missed: str = ""
    instant: float = 0.0
    phase: str = ""
    before: int = 0
    hits: list[dict[str, Any]] = field(default_factory=list)
    state: str = ""
    rows: int = 0
    replicas: int = 2
    asked: int = 0
    generated: int = 0
    lost_engines: int = 0
    in_flight: int = 0
    overdue: int = 0
    unexplained: int = 0
    late: int = 0
    foreign: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    tries: int = 0
    submissions: int = 0
    seconds: float = 0.0
    expected: float = 0.0

    @property
    def flaws(self) -> list[str]:
        """What it must not have; empty when all is well."""
        found = [f"missed: {self.missed}"] if self.missed else []
        if not self.state:  # nothing was counted
            return found
        found += [f"state={self.state}"] if self.state != "success" else []
        zeros = ("lost", "duplicated", "wrong", "unexplained", "overdue", "late", "foreign")
        found += [f"{name}={n}" for name in zeros if (n := getattr(self, name))]
        if not self.lost_engines and not self.asked == self.generated == self.rows:
            found.append(f"asked={self.asked}, generated={self.generated} of {self.rows}")
        if self.generated < self.rows or self.asked > self.rows + self.in_flight:
            found.append(f"asked={self.asked}, generated={self.generated} of {self.rows}+{self.in_flight}")
        return found

    def __str__(self) -> str:
        flaws = f"; FLAWS: {', '.join(self.flaws)}" if self.flaws else ""
        hits = "+".join(hit["kind"] for hit in self.hits) or "none"
        killed = "nothing killed"
        if self.phase:
            killed = f"killed at {self.instant:.1f} s, {self.phase}, {self.before} rows"
        return (
            f"seed {self.seed} ({self.kind}, {self.mode}, {self.store}): {killed}, "
            f"hit by {hits}; {self.seconds:.0f} s for {self.expected:.0f}, asked {self.asked} and generated "
            f"{self.generated} for {self.rows}+{self.in_flight}, {self.lost_engines} engines lost, "
            f"{self.submissions} jobs, {self.tries} tries{flaws}"
        )
