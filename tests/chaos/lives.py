# SPDX-License-Identifier: Apache-2.0
"""The undisturbed lifetimes of victims, from which the instants of kills are drawn."""

from __future__ import annotations

import time

from .plan import FAULTS, KINDS
from .world import OWN, Live, World, victim_of

Lives = dict[tuple[str, str], float]
"""Seconds that each kind of victim lives undisturbed, by kind and mode; of a shared one, those of a run."""


class FirstLives:
    """The lifetimes of the first worker, driver and engine of an undisturbed run."""

    def __init__(self, world: World, live: Live) -> None:
        self._world, self._live = world, live
        self._seen: dict[str, tuple[float, float]] = {}
        self._alive = {victim_of(kind) for kind in OWN}

    def sample(self) -> None:
        """Note which processes are alive now."""
        for kind in [*self._alive]:
            now = time.monotonic()
            if self._world.victims(self._live, kind):
                self._seen[kind] = (self._seen.get(kind, (now, now))[0], now)
            elif kind in self._seen:
                self._alive.remove(kind)

    def shorten(self, lives: Lives, mode: str, seconds: float) -> None:
        """Put shorter lifetimes into `lives`; those of shared victims are the run's `seconds`."""
        found = {kind: last - first for kind, (first, last) in self._seen.items()}
        for kind in ("run", *KINDS, *FAULTS):
            known = lives.get((kind, mode), float("inf"))
            lives[kind, mode] = min(known, found.get(victim_of(kind), known if kind in OWN else seconds))
