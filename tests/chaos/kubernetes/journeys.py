# SPDX-License-Identifier: Apache-2.0
"""Records undisturbed rounds, whose calls are the points at which later rounds are struck."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import Point
from .plan import MODES, Recorded, Round, at_every_point, at_random, marked, on_ray
from .rounds import play

_MOST = 2
"""Equal calls of a role that are struck: polls come again and again."""


def recorded() -> Recorded:
    """Play a plain round and one that a user ends, in both modes."""
    found = Recorded()
    for mode in MODES:
        found.plain[mode] = calls_of(Round(-1, mode))
        found.stopping[mode] = calls_of(Round(-1, mode, (marked(mode),)))
    return found


def recorded_dag_run(modes: Sequence[str] = MODES) -> Recorded:
    """Play a plain DAG run whose tasks share a cluster."""
    return Recorded({mode: calls_of(Round(-1, mode, shared=True)) for mode in modes})


def round_of(seed: int, known: Recorded, *, real: bool = False) -> Round:
    """The round of a seed."""
    if real:
        return on_ray(seed, known)
    points = at_every_point(known)
    return points[seed] if seed < len(points) else at_random(seed, known)


def calls_of(one: Round) -> list[Point]:
    """The calls of a round that goes well, without repetitions."""
    result, calls = play(one)
    if result.flaws or result.missed:
        raise SystemExit(f"An undisturbed round went wrong: {result.line()}")
    return [call for call in calls if call.nth <= _MOST]
