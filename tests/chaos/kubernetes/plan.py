# SPDX-License-Identifier: Apache-2.0
"""Maps a seed to what happens to a task: first each point between two calls, then at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from .calls import Point, Strike, When
from .deeds import DEEDS

MODES = ("blocking", "deferrable")
_WORLD = tuple(DEEDS)
_SHIFTS = (0.0, 0.0, 18_000.0, -18_000.0)
WHENS: tuple[When, When] = ("before", "after")


@dataclass(frozen=True)
class Round:
    """One task, or one DAG run whose tasks share a cluster, and what happens to it.

    :param shift: seconds by which the server's clock is ahead of this machine's.
    :param shared: whether it is a DAG run.
    """

    seed: int
    mode: str
    strikes: tuple[Strike, ...] = ()
    shift: float = 0.0
    shared: bool = False

    @property
    def kind(self) -> str:
        """What is killed, or happens, for the table."""
        if not self.strikes:
            return "nothing"
        last = next((one for one in self.strikes[1:] if one.deed != "kill"), self.strikes[-1])
        who = "triggerer" if last.point.role.endswith("trigger") else "worker"
        if last.point.role.endswith("stop"):
            who = "worker or triggerer while it stops the job"
        return {
            "kill": who,
            "late": f"{who}, successor late",
            "orphan": f"{who}, no successor",
            "lost": "answer lost",
            "fail": "marked failed",
            "clear": "cleared",
        }.get(last.deed, last.deed)

    def __str__(self) -> str:
        told = "; ".join(f"{one.deed} {one.when} {one.point}" for one in self.strikes)
        return f"seed {self.seed} ({self.mode}, clock {self.shift:+.0f} s): {told or 'nothing'}"


@dataclass(frozen=True)
class Recorded:
    """The calls of undisturbed tasks, and of tasks that a user marks as failed, by mode."""

    plain: dict[str, list[Point]] = field(default_factory=dict)
    stopping: dict[str, list[Point]] = field(default_factory=dict)


def marked(mode: str) -> Strike:
    """A user marks a task as failed while its job runs."""
    role = "task" if mode == "blocking" else "trigger"
    return Strike(Point(role, "GET Jobs API /api/jobs/ID", 2 if mode == "blocking" else 1), "after", "fail")


def at_every_point(recorded: Recorded) -> list[Round]:
    """SIGKILL between any two calls, in both modes, and while a user's mark is obeyed.

    A call that changes nothing is struck before it alone: after it, all is as before the next one.
    """
    strikes: list[tuple[str, tuple[Strike, ...]]] = []
    for mode in recorded.plain:
        for point in recorded.plain[mode]:
            strikes += [(mode, (Strike(point, when, "kill"),)) for when in _whens(point)]
        for point in recorded.stopping.get(mode, ()):
            if point.role == "stop":
                strikes += [(mode, (marked(mode), Strike(point, when, "kill"))) for when in _whens(point)]
    return [Round(number, mode, struck) for number, (mode, struck) in enumerate(strikes)]


def _whens(point: Point) -> tuple[When, ...]:
    return WHENS[:1] if point.call.startswith("GET") else WHENS


def at_random(seed: int, recorded: Recorded) -> Round:
    """Something at some call; a quarter of these rounds have a second deed."""
    chance = random.Random(seed)
    mode = chance.choice([*recorded.plain])
    deeds = ("kill", "late", "orphan", "lost", "fail", "clear", *_WORLD)
    points = recorded.plain[mode]
    strikes = [_some(chance, points, deeds[seed % len(deeds)])]
    if chance.random() < 0.25:
        strikes.append(_some(chance, points, chance.choice(("kill", "lost", *_WORLD))))
    return Round(seed, mode, tuple(strikes), chance.choice(_SHIFTS))


_ON_RAY = (
    "head restarted", "lost", "clear", "RayJob deleted", "API server", "kill", "evicted by Kueue",
    "RayCluster deleted", "controller", "orphan", "clock set forward", "head preempted", "late", "fail",
)  # fmt: skip


def on_ray(seed: int, recorded: Recorded) -> Round:
    """Three strikes at one task on real Ray, whose start takes most of a round.

    SIGKILL before the job is submitted, then something else, and SIGKILL again; a task that a user ends has
    two.
    """
    chance = random.Random(seed)
    mode = MODES[seed % 2]
    points = recorded.plain[mode]
    posted = next(number for number, one in enumerate(points) if one.call == "POST Jobs API /api/jobs/")
    deed = _ON_RAY[seed // 2 % len(_ON_RAY)]
    strikes = [
        Strike(chance.choice(points[: posted + 1]), chance.choice(WHENS), "kill"),
        Strike(
            chance.choice(points[posted + 1 :]), "after" if deed == "lost" else chance.choice(WHENS), deed
        ),
    ]
    if deed not in {"fail", "orphan"}:
        strikes.append(Strike(chance.choice(points[posted + 1 :]), chance.choice(WHENS), "kill"))
    return Round(seed, mode, tuple(strikes), chance.choice(_SHIFTS))


def _some(chance: random.Random, points: Sequence[Point], deed: str) -> Strike:
    possible = points
    if deed in _WORLD[2:]:  # of the cluster, which has to be there
        made = next(number for number, one in enumerate(points) if one.call == "POST Jobs API /api/jobs/")
        possible = points[made:]
    return _at(chance, possible, deed)


def _at(chance: random.Random, points: Sequence[Point], deed: str) -> Strike:
    when: When = "after" if deed == "lost" else chance.choice(WHENS)
    return Strike(chance.choice(points), when, deed)
