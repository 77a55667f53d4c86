# SPDX-License-Identifier: Apache-2.0
"""Maps a seed to a kill: victim, time, store, and the mode in which the task follows its job."""

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
FAULTS = ("partition", "api", "pair", "cleared", "mapped", "full", "suspended")
"""What else goes wrong, with ``--faults``:

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
# Seven of each, so that each kind comes with each mode and each store.
MODES = ("blocking", "deferrable")
_LATE_SHARE = 0.7
_EARLY_SHARE = 0.4
"""With three replicas and ``--spread 20``, the last engine is ready at about half of a run."""


@dataclass(frozen=True)
class Kill:
    """One planned kill.

    :param share: time of the kill, as a share of its first victim's lifetime in an undisturbed run; for a
        shared victim, of the run's time from submission to end. So no kill waits for the start of its victim.
    :param with_family: whether the victim's children, or its supervisor, die with it.
    :param choice: picks one of several possible victims, 0 to 1.
    :param store: the store of the run's data: ``disk``, or ``s3`` with faults.
    """

    seed: int
    kind: str
    mode: str
    share: float
    with_family: bool
    choice: float
    store: str = "disk"


def plan(seed: int, faults: bool = False, early: bool = False) -> Kill:
    """Plan the kill of a seed.

    Kinds and modes take turns, so that any range of seeds covers them evenly; the rest is random.

    :param faults: use the kinds in `FAULTS` instead.
    :param early: kill while engines start.
    """
    chance = random.Random(seed)
    kinds = FAULTS if faults else KINDS
    kind = kinds[seed % len(kinds)]
    # A blocking task has no triggerer.
    mode = "deferrable" if kind in {"triggerer", "pair"} else MODES[seed % len(MODES)]
    share = chance.random() * (_EARLY_SHARE if early else 1)
    return Kill(
        seed=seed,
        kind=kind,
        mode=mode,
        share=_LATE_SHARE + (1 - _LATE_SHARE) * share if kind == "api" else share,
        with_family=chance.random() < 0.5,
        choice=chance.random(),
        store="s3" if seed % 3 == 2 and kind not in ON_DISK else "disk",
    )
