# SPDX-License-Identifier: Apache-2.0
"""Which name has the largest value, when values change with each call."""

from __future__ import annotations

import heapq


class Largest:
    """A heap with lazy deletion. Each change costs O(log n), amortised."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def set(self, name: str, value: int) -> None:
        """Set the value of a name; a value below 1 is never found."""
        if self._values.get(name, 0) == value:
            return
        self._values[name] = value
        if value > 0:
            heapq.heappush(self._heap, (-value, name))
            if len(self._heap) > 4 * len(self._values) + 16:
                self._heap = [(-value, name) for name, value in self._values.items() if value > 0]
                heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Forget a name."""
        self._values.pop(name, None)

    def find(self) -> str | None:
        """The name with the largest value; ``None`` if no value is above 0."""
        while self._heap:
            value, name = self._heap[0]
            if self._values.get(name, 0) == -value:
                return name
            heapq.heappop(self._heap)
        return None
