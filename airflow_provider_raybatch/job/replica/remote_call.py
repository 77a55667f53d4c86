# SPDX-License-Identifier: Apache-2.0
"""A call that the driver lets one of the replicas' processes do, since it needs what engines import."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.job.scheduling.messages import SILENT

Answer = tuple[Any, Exception | None]
"""What a call's function has returned, or raised."""


@dataclass(frozen=True)
class RemoteCall:
    """A function and its arguments."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class PendingCall:
    """One call at a time, and the process that does it."""

    def __init__(self) -> None:
        self._call: RemoteCall | None = None
        self._process = ""
        self._answer: Answer | None = None
        self._heard: dict[str, float] = {}
        """When each process last reported."""

    def put(self, call: RemoteCall | None) -> None:
        """Let one of the processes do a call; ``None`` takes it back."""
        self._call, self._process, self._answer = call, "", None

    def heard_of(self, process: str) -> None:
        """A process has started, or has reported."""
        self._heard[process] = time.monotonic()

    def ended(self, process: str) -> None:
        """A process has ended. Another one does the call that it has not answered."""
        self._heard.pop(process, None)
        if process == self._process and self._answer is None:
            self._process = ""

    def for_process(self, process: str) -> RemoteCall | None:
        """The call, if this process shall do it."""
        if self._call is None or self._process or process not in self._heard:
            return None
        self._process = process
        return self._call

    def take(self, process: str, returned: Any, error: Exception | None) -> None:
        """Keep the answer of the process that does the call."""
        if process == self._process:
            self._answer = returned, error

    def state(self) -> tuple[bool, Answer | None]:
        """Whether a process is there that will answer, and the answer as soon as it has.

        A process sees the call when it has imported its engine, which may take half a minute, and reports
        meanwhile. One on a lost node does not report.
        """
        now = time.monotonic()
        return any(now - heard < SILENT for heard in self._heard.values()), self._answer
