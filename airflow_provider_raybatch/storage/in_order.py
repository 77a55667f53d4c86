# SPDX-License-Identifier: Apache-2.0
"""Work on many files side by side: each request to a store takes tens of milliseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
T = TypeVar("T")


def in_order(function: Callable[[Item], T], items: Iterable[Item], at_once: int = 16) -> Iterator[T]:
    """`function` of each item, in their order; `items` is read as far as that needs.

    :param at_once: at most so many items are in work, or done and not yet taken.
    """
    with ThreadPoolExecutor(at_once, thread_name_prefix="raybatch-in-order") as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
