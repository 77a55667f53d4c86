# SPDX-License-Identifier: Apache-2.0
"""An object in S3 as Python's own kind of file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

REQUEST_BYTES = 8 * 1024 * 1024
"""Of one read: enough to make the way to S3 and back not count."""


class ObjectReader(io.RawIOBase):
    """Unbuffered: each read is a request; put an ``io.BufferedReader`` of `REQUEST_BYTES` around it.

    Holds no connection and no state but its position, so that a read that failed can simply be repeated.

    :param fetch: bytes from an offset on, of a length.
    :param size: of the object, in bytes.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer`, or as much of it as is left."""
        length = min(len(buffer), self._size - self._position, REQUEST_BYTES)
        if length <= 0:
            return 0
        content = self._fetch(self._position, length)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def readall(self) -> bytes:
        """The rest; Python's own way asks for 8 KiB at a time."""
        pieces = []
        while piece := self.read(REQUEST_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go somewhere."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"seek: {base + offset} is before the beginning")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Where it is."""
        return self._position
