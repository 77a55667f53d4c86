# SPDX-License-Identifier: Apache-2.0
"""Storage that takes its time to list what lost processes have written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any


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
