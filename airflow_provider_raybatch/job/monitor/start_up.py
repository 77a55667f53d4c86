# SPDX-License-Identifier: Apache-2.0
"""Where the seconds go between the start of a job and its first request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress

_STEPS = {
    "source": "reading the source",
    "prompt": "checking the prompt and the destination",
    "nodes": "waiting for a node",
    "model": "checking the model",
    "earlier": "looking for rows that are done",
    "claim": "claiming the destination",
}
"""What the driver does until each phase has ended, in their order."""
_SAY_AFTER = 30.0
_LOOK = 5.0
_SHOWN = 0.5
"""Seconds of a phase that is named in the log; the manifest has them all."""


class StartUp:
    """The phases of one job's start-up, one after the other.

    :ivar began: epoch seconds of the job's start.
    """

    def __init__(self) -> None:
        self.began = self._last = self._said = time.time()
        self._seconds: dict[str, float] = {}
        self._steps = list(_STEPS)

    @property
    def seconds(self) -> float:
        """From the job's start to the end of its last phase so far."""
        return self._last - self.began

    def begins(self, phase: str) -> None:
        """Say of a phase that is not in its turn that it goes on, until it has ended."""
        self._steps.insert(0, phase)

    def ended(self, phase: str) -> None:
        """Let `phase` have the seconds since the one before it ended."""
        now = time.time()
        self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._last
        self._last = now
        if phase in self._steps:
            self._steps = self._steps[self._steps.index(phase) + 1 :]

    def still(self, now: float) -> Phase | None:
        """What the driver is doing, each half minute of one step; ``None`` between.

        :param now: epoch seconds.
        """
        if not self._steps or now - max(self._last, self._said) < _SAY_AFTER:
            return None
        self._said = now
        text = f"still {_STEPS[self._steps[0]]} ({now - self._last:.0f} s)"
        return Phase(phase="preflight", message=text)

    @contextmanager
    def saying(self, emit: Callable[[Phase], None], look: float = _LOOK) -> Iterator[None]:
        """Emit :meth:`still` from another thread until the last step has ended.

        :param look: seconds between two looks.
        """
        over = threading.Event()

        def run() -> None:
            while self._steps and not over.wait(look):
                if (phase := self.still(time.time())) is not None:
                    emit(phase)

        threading.Thread(target=run, name="raybatch-start-up", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def phases(self, reports: Sequence[ReplicaProgress] = ()) -> dict[str, float]:
        """Seconds of each phase in their order.

        :param reports: of replicas. The later phases are those of the replica with the first request.
        """
        found = dict(self._seconds)
        first = min(
            (one for one in reports if one.first_request), key=lambda one: one.first_request, default=None
        )
        if first is not None and first.started:
            # Replicas start while the driver checks the job. A phase that was over by then took no time.
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
