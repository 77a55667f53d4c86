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
    """

    def __init__(self, most: int = 8_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._documents: OrderedDict[str, Any] = OrderedDict()

    def get(self, path: str) -> Any:
        """A document; ``None`` where it is not kept."""
        with self._lock:
            if path in self._documents:
                self._documents.move_to_end(path)
            return self._documents.get(path)

    def keep(self, path: str, document: T) -> T:
        """Keep a document that no longer changes, and return it."""
        with self._lock:
            self._documents[path] = document
            self._documents.move_to_end(path)
            if len(self._documents) > self._most:
                self._documents.popitem(last=False)
        return document

    def get_or(self, path: str, read: Callable[[], T]) -> T:
        """A document, which `read` reads where it is not kept."""
        found = self.get(path)
        return self.keep(path, read()) if found is None else found
