# SPDX-License-Identifier: Apache-2.0
"""From a seed to a kill: who, when, where, and in which mode the task follows its job."""

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
WEATHER = ("partition", "api", "pair", "cleared", "mapped", "full", "suspended")
"""What else goes wrong, with ``--weather``:

- ``partition``: for half a minute no byte passes between Airflow and Ray; the job goes on
- ``api``: Airflow's API server is frozen, or dead, for half a minute in the last third of the run
- ``pair``: the triggerer, with all it started, and the task's worker if it has one, at once
- ``cleared``: the worker of a task without retries; the failed task is cleared
- ``mapped``: the driver of one of three mapped tasks; the others' jobs go on
- ``full``: when nearly all rows are generated, the disk has a few KiB left; half a minute later, all
- ``suspended``: the driver is stopped (SIGSTOP) until after the task's timeout, and continued; the task has
  no retries and is cleared when it has failed
"""
ON_DISK = ("mapped", "full")
"""Kinds that are tried on disks alone."""
# Seven of each, so that each kind meets each mode and each store.
MODES = ("blocking", "deferrable")
_LATE_SHARE = 0.7


@dataclass(frozen=True)
class Kill:
    """One planned kill.

    :param share: when it happens, as a share of the life that its first victim has in an undisturbed run; of
        a shared victim, of the run's time from submission to end. So no instant waits for a birth.
    :param with_family: whether what the victim started, or what watches it, dies with it.
    :param choice: picks one of several possible victims, 0 to 1.
    :param store: where the run has its data: ``disk``, or an ``s3`` with faults.
    """

    seed: int
    kind: str
    mode: str
    share: float
    with_family: bool
    choice: float
    store: str = "disk"


def plan(seed: int, weather: bool = False) -> Kill:
    """Kinds and modes take turns, so that any range of seeds covers them evenly; the rest is random.

    :param weather: of the kinds in `WEATHER` instead.
    """
    chance = random.Random(seed)
    kinds = WEATHER if weather else KINDS
    kind = kinds[seed % len(kinds)]
    # A triggerer has no part in a blocking task.
    mode = "deferrable" if kind in {"triggerer", "pair"} else MODES[seed % len(MODES)]
    share = chance.random()
    return Kill(
        seed=seed,
        kind=kind,
        mode=mode,
        share=_LATE_SHARE + (1 - _LATE_SHARE) * share if kind == "api" else share,
        with_family=chance.random() < 0.5,
        choice=chance.random(),
        store="s3" if seed % 3 == 2 and kind not in ON_DISK else "disk",
    )
