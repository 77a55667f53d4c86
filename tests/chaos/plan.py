# SPDX-License-Identifier: Apache-2.0
"""From a seed to a kill: who, when, and in which mode the task follows its job."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("worker", "driver", "engine", "triggerer", "scheduler", "node", "head")
"""What is killed:

- ``worker``: the task's process, alone or with its supervisor
- ``driver``: the job's driver on the head
- ``engine``: a replica's process
- ``triggerer``, ``scheduler``: that component, alone or with all it started; started again at once
- ``node``: all processes of a Ray worker node; another node takes its place seconds later
- ``head``: all processes of the Ray head; a new head on the same port and new workers follow
"""
MODES = ("blocking", "deferrable")


@dataclass(frozen=True)
class Kill:
    """One planned kill.

    :param share: when it happens, as a share of the life that its first victim has in an undisturbed run; of
        a shared victim, of the run's time from submission to end. So no instant waits for a birth.
    :param with_family: whether what the victim started, or what watches it, dies with it.
    :param choice: picks one of several possible victims, 0 to 1.
    """

    seed: int
    kind: str
    mode: str
    share: float
    with_family: bool
    choice: float


def plan(seed: int) -> Kill:
    """Kinds and modes take turns, so that any range of seeds covers them evenly; the rest is random."""
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    # A triggerer has no part in a blocking task.
    mode = "deferrable" if kind == "triggerer" else MODES[seed % len(MODES)]
    return Kill(
        seed=seed,
        kind=kind,
        mode=mode,
        share=chance.random(),
        with_family=chance.random() < 0.5,
        choice=chance.random(),
    )
