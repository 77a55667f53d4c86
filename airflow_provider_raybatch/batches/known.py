# SPDX-License-Identifier: Apache-2.0
"""Documents that never change, kept in memory, so that polls don't read them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class KnownDocuments:
    """The documents that were used last, by their paths. Threads may share it.

    :param most: documents.
    :param most_bytes: of all, as they are stored; objects in memory take some ten times as much.
    """

    def __init__(self, most: int = 8_000, most_bytes: int = 16 * 2**20) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, path: str) -> Any:
        """A document; ``None`` where it is not kept."""
        with self._lock:
            if path in self._documents:
                self._documents.move_to_end(path)
            return self._documents.get(path, (None, 0))[0]

    def keep(self, path: str, document: T, size: int = 0) -> T:
        """Keep a document that no longer changes, and return it.

        :param size: bytes, as it is stored.
        """
        with self._lock:
            self._bytes += size - self._documents.pop(path, (None, 0))[1]
            self._documents[path] = document, size
            while len(self._documents) > self._most or self._bytes > self._most_bytes:
                self._bytes -= self._documents.popitem(last=False)[1][1]
        return document

    def get_or(self, path: str, read: Callable[[], T], size: int) -> T:
        """A document, which `read` reads where it is not kept."""
        found = self.get(path)
        return self.keep(path, read(), size) if found is None else found
