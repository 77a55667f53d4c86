# SPDX-License-Identifier: Apache-2.0
"""Where the seconds go between the start of a job and its first request."""

from __future__ import annotations

import time
from collections.abc import Sequence

from airflow_provider_raybatch.job.monitor.board import ReplicaReport

_SHOWN = 0.5
"""Seconds of a phase that is named in the log; the manifest has them all."""


class StartUp:
    """The phases of one job's start-up, one after the other.

    :ivar began: epoch seconds of the job's start.
    """

    def __init__(self) -> None:
        self.began = self._last = time.time()
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """From the job's start to the end of its last phase so far."""
        return self._last - self.began

    def ended(self, phase: str) -> None:
        """Let `phase` have the seconds since the one before it ended."""
        now = time.time()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now

    def phases(self, reports: Sequence[ReplicaReport] = ()) -> dict[str, float]:
        """Seconds of each phase in their order.

        :param reports: of replicas. The one that made the first request counts; until one did, there are only
            the phases before them.
        """
        found = dict(self._seconds)
        first = min(
            (one for one in reports if one.first_request), key=lambda one: one.first_request, default=None
        )
        if first is not None and first.started:
            # Replicas start while the driver checks the job; what of it was over by then, cost no time.
            last = self._last
            for phase, end in (
                ("replica", first.started),
                ("import", first.imported),
                ("engine", first.started + first.startup_seconds),
                ("rows", first.first_request),
            ):
                found[phase] = max(0.0, end - last)
                last = max(last, end)
        elif first is not None:
            found["engine"] = first.first_request - self._last
        return {phase: round(max(0.0, seconds), 2) for phase, seconds in found.items()}


def in_words(phases: dict[str, float]) -> str:
    """The sum, and the phases that make most of it."""
    shown = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in phases.items() if seconds >= _SHOWN)
    return f"{sum(phases.values()):.1f} s" + (f" ({shown})" if shown else "")
