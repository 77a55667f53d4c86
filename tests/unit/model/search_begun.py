# SPDX-License-Identifier: Apache-2.0
"""The rows that processes have begun, kept for each node."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from airflow_provider_raybatch.job.replica.crash_log import CrashLog
from airflow_provider_raybatch.job.scheduling.messages import Begun


class BegunInMemory(CrashLog):
    """Which rows a process has begun; the record outlives the process, but not its node."""

    def __init__(self, place: tuple[dict[str, BegunInMemory], str]) -> None:
        self._all, self._actor = place
        self._all[self._actor] = self
        self.rows: dict[int, int] = {}

    def _set(self, ordinal: int, value: int) -> None:
        self.rows[ordinal] = value

    def end(self, ordinals: Iterable[int]) -> None:
        for ordinal in ordinals:
            self.rows.pop(ordinal, None)

    def now(self) -> Begun:
        inside = np.array([row for row, value in self.rows.items() if value > 0], dtype=np.int64)
        prepared = np.array([row for row, value in self.rows.items() if value < 0], dtype=np.int64)
        return Begun(inside, prepared)

    def remove(self) -> None:
        self._all.pop(self._actor, None)

    @staticmethod
    def left(place: tuple[dict[str, BegunInMemory], str]) -> Begun | None:
        known = place[0].pop(place[1], None)
        return None if known is None else known.now()
