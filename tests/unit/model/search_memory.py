# SPDX-License-Identifier: Apache-2.0
"""In memory: which rows processes have begun, and listings of what lost ones have written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any

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


class Listings:
    """Stands for threads: each listing is answered in a step of its own, in any order."""

    def __init__(self, threads: int, thread_name_prefix: str) -> None:
        self.awaited: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        answer = Future[Any]()
        self.awaited.append((answer, partial(function, *arguments)))
        return answer

    def answer(self, number: int) -> None:
        answer, function = self.awaited.pop(number)
        answer.set_result(function())
