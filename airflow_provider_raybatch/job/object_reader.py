# SPDX-License-Identifier: Apache-2.0
"""An object in S3 as Python's own kind of file."""

from __future__ import annotations

import io
from typing import Any, Protocol


class Readable(Protocol):
    """What obstore's reader has; a context manager, or `closed`, which pyarrow asks for, it has not."""

    def read(self, size: int, /) -> Any:
        """The next bytes."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go somewhere."""

    def tell(self) -> int:
        """Where it is."""

    def close(self) -> None:
        """Let go of the object."""


class ObjectReader(io.RawIOBase):
    """Unbuffered, since obstore's reader buffers; put an ``io.BufferedReader`` around it for whole reads."""

    def __init__(self, source: Readable) -> None:
        self._source = source

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` as far as the next read reaches."""
        content = self._source.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go somewhere."""
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        """Where it is."""
        return self._source.tell()

    def close(self) -> None:
        """Once."""
        if not self.closed:
            self._source.close()
        super().close()
