# SPDX-License-Identifier: Apache-2.0
"""The clock of the stand-in for a Kubernetes, which need not agree with this machine's."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """Epoch seconds of the server.

    :param shift: seconds by which it is ahead of this machine's clock; negative: behind.
    :param start: with a number, the clock stands there, and only :meth:`advance` moves it.
    """

    def __init__(self, shift: float = 0.0, start: float | None = None) -> None:
        self.shift = shift
        self._standing = start

    def now(self) -> float:
        return (time.time() if self._standing is None else self._standing) + self.shift

    def advance(self, seconds: float) -> None:
        self.shift += seconds

    def timestamp(self) -> str:
        """Now as Kubernetes writes it: whole seconds."""
        return timestamp(self.now())


def timestamp(epoch: float) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def epoch_of(text: str) -> float:
    """Epoch seconds of a timestamp of Kubernetes."""
    return datetime.fromisoformat(text).timestamp()
