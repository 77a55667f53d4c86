# SPDX-License-Identifier: Apache-2.0
"""A question of the driver that one of the replicas answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.job.scheduling.messages import SILENT

Answer = tuple[Any, Exception | None]
"""What the function of a question has returned, or raised."""


@dataclass(frozen=True)
class RemoteCall:
    """A function that needs what engines import, to be called where one has it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class PendingCall:
    """One question at a time, and the process that has it."""

    def __init__(self) -> None:
        self._question: RemoteCall | None = None
        self._process = ""
        self._answer: Answer | None = None
        self._heard: dict[str, float] = {}
        """When each process was heard of."""

    def put(self, question: RemoteCall | None) -> None:
        """Let one of the processes answer a question; ``None`` takes it back."""
        self._question, self._process, self._answer = question, "", None

    def heard_of(self, process: str) -> None:
        """A process has started, or has reported."""
        self._heard[process] = time.monotonic()

    def ended(self, process: str) -> None:
        """It has ended. What it has not answered is another's."""
        self._heard.pop(process, None)
        if process == self._process and self._answer is None:
            self._process = ""

    def for_process(self, process: str) -> RemoteCall | None:
        """The question, if this process shall answer it."""
        if self._question is None or self._process or process not in self._heard:
            return None
        self._process = process
        return self._question

    def take(self, process: str, returned: Any, error: Exception | None) -> None:
        """What came of it in this process."""
        if process == self._process:
            self._answer = returned, error

    def state(self) -> tuple[bool, Answer | None]:
        """Whether a process is there that will answer it, and the answer as soon as it has.

        It sees the question when it has imported its engine, which may take half a minute, and reports
        meanwhile. One that is on a lost node does not.
        """
        now = time.monotonic()
        return any(now - heard < SILENT for heard in self._heard.values()), self._answer
