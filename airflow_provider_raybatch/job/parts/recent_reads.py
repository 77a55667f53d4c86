# SPDX-License-Identifier: Apache-2.0
"""What was read of files, kept in memory while it is used: neighbouring rows are in the same files."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_MOST_BYTES = 128 * 2**20

T = TypeVar("T")


class RecentReads(Generic[T]):
    """The last used ones of at most 128 MiB together; one is kept in any case.

    :param size: bytes of what was read.
    """

    def __init__(self, size: Callable[[T], int]) -> None:
        self._size = size
        self._read: OrderedDict[Hashable, T | None] = OrderedDict()
        self._lock = threading.Lock()
        """Not held while a file is read."""

    def get(self, name: Hashable, read: Callable[[], T | None]) -> T | None:
        """What `read` gives for a file, which is called again only if it is kept no more.

        :param read: ``None`` for a file that can't be read, which is kept, too.
        """
        with self._lock:
            if name in self._read:
                self._read.move_to_end(name)
                return self._read[name]
        made = read()
        with self._lock:
            self._read[name] = made
            while len(self._read) > 1 and self._bytes > _MOST_BYTES:
                self._read.popitem(last=False)
        return made

    @property
    def _bytes(self) -> int:
        return sum(self._size(one) for one in self._read.values() if one is not None)
