# SPDX-License-Identifier: Apache-2.0
"""Where replicas say how far they are: a small actor, asked by the driver once a second or two."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_raybatch.job.diagnosis import diagnose

_PATIENCE = 30.0


@dataclass
class ReplicaReport:
    """What a replica says of itself, cumulative since its process started.

    :param state: ``starting`` or ``ready``.
    :param first_request: epoch seconds of its first request, 0 before it.
    :param gpu_utilization: mean of NVML's samples since the engine was ready, ``None`` without an NVIDIA GPU.
    :param failure: class and sentence of what ended it.
    """

    replica: str
    node: str
    state: str = "starting"
    rows: int = 0
    errors: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    startup_seconds: float = 0.0
    first_request: float = 0.0
    gpu_utilization: float | None = None
    effective_sampling: dict[str, Any] | None = None
    sizes: dict[str, Any] | None = None
    versions: dict[str, str] | None = None
    failure: tuple[str, str] | None = None


class Board:
    """The actor's class: the latest report of each replica."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Any]] = {}

    def report(self, report: dict[str, Any]) -> None:
        """Replace a replica's report."""
        self._reports[report["replica"]] = report

    def snapshot(self) -> list[dict[str, Any]]:
        """All reports, replicas that died included: their rows were done."""
        return list(self._reports.values())


class Reporter:
    """Sends a replica's report every `interval` seconds, from a thread of its own.

    :param board: handle of the :class:`Board` actor.
    :param sample: called before each report, to bring it up to date.
    """

    def __init__(
        self, board: Any, report: ReplicaReport, sample: Callable[[], None], interval: float = 1.0
    ) -> None:
        self._board = board
        self._content = report
        self._sample = sample
        self._interval = interval
        self.send()
        threading.Thread(target=self._run, name="raybatch-reporter", daemon=True).start()

    def send(self) -> None:
        """Report now. Nobody waits for the answer: a lost report is replaced by the next."""
        self._board.report.remote(asdict(self._content))

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Report what is raised inside: of an actor's exception Ray hands on a text, and not all of it."""
        try:
            yield
        except Exception as error:
            failure_class, sentence = diagnose(error)
            self._content.failure = (failure_class.value, sentence)
            import ray

            ray.get(self._board.report.remote(asdict(self._content)), timeout=_PATIENCE)
            raise

    def _run(self) -> None:
        while True:
            time.sleep(self._interval)
            self._sample()
            self.send()
