# SPDX-License-Identifier: Apache-2.0
"""Maps a seed to the kills of a round, and to the batches that clients make meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("server", "scheduler", "worker", "driver", "engine")
"""What is killed with SIGKILL:

- ``server``: one of two API servers, or both, at a moment of :data:`MOMENTS`
- ``scheduler``: alone, or with the executor and its tasks
- ``worker``: a task's process, alone or with its supervisor
- ``driver``: the driver of a job that runs
- ``engine``: the process of an engine that has requests in flight
"""
TRIGGERER = "triggerer"
"""Killed once in each round: the tasks of one of the models are deferred."""
MOMENTS = ("upload", "create", "recorded", "cancel", "poll", "download")
"""When a server is killed: during such a call. ``recorded`` is the instant at which a batch has its record
and no DAG run yet, and takes both servers."""


@dataclass(frozen=True)
class Kill:
    """One planned kill.

    :param moment: of :data:`MOMENTS`; ``""`` for other kinds than ``server``.
    :param with_family: whether children, or the supervisor, or the other server, die as well.
    :param after: seconds from the kill before it.
    :param delay: seconds from the beginning of its moment.
    :param away: seconds until the component is started again.
    :param choice: picks one of several possible victims, 0 to 1.
    """

    kind: str
    moment: str
    with_family: bool
    after: float
    delay: float
    away: float
    choice: float


def plan(seed: int, each: int = 2) -> list[Kill]:
    """The kills of a round, in order.

    :param each: kills of each kind.
    """
    chance = random.Random(seed)
    kinds = [*KINDS * each, TRIGGERER]
    chance.shuffle(kinds)
    found, servers = [], each * seed
    for number, kind in enumerate(kinds):
        moment = ""
        if kind == "server":
            moment, servers = MOMENTS[servers % len(MOMENTS)], servers + 1
        found.append(
            Kill(
                kind,
                moment,
                with_family=moment == "recorded" or chance.random() < 0.5,
                after=chance.uniform(8, 12) if number == 0 else chance.uniform(2, 7),
                delay=0.0 if moment == "recorded" else chance.uniform(0, 0.4),
                away=chance.uniform(1, 5),
                choice=chance.random(),
            )
        )
    return found
