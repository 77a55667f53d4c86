# SPDX-License-Identifier: Apache-2.0
"""Find flipped bits before a file is parsed: checksums of whole files, and of Parquet footers.

Parquet has checksums of pages, but none of the footer. A bit that flips there renames a column, or ends the
process: Arrow raises some of its errors where Python can't catch them.
"""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

_SIZE = 16
_TAIL = 8
"""Bytes after the footer: its length, and Parquet's mark."""
_READ_AT_ONCE = 64 * 1024
"""Bytes of the end that one request reads; most footers have fewer."""


def with_checksum(content: bytes) -> bytes:
    """`content` with a checksum at its end."""
    return content + _digest(content)


def checked(content: bytes) -> bytes:
    """What :func:`with_checksum` was given.

    :raises ValueError: it is not that any more.
    """
    inner = content[:-_SIZE]
    if len(content) < _SIZE or _digest(inner) != content[-_SIZE:]:
        raise ValueError("its checksum does not fit")
    return inner


def with_footer_checksum(parquet: bytes) -> bytes:
    """The same Parquet file with a checksum of its footer before the footer, where readers find a gap."""
    footer = len(parquet) - _TAIL - int.from_bytes(parquet[-_TAIL:-4], "little")
    return parquet[:footer] + _digest(parquet[footer:]) + parquet[footer:]


def checked_footer(stream: BinaryIO | io.RawIOBase) -> bytes:
    """The footer of a file of :func:`with_footer_checksum`, of which ``pq.read_metadata`` reads all it needs.

    :raises ValueError: it is damaged, or has no checksum.
    """
    size = stream.seek(0, io.SEEK_END)
    end = _last(stream, size, _READ_AT_ONCE)
    needed = int.from_bytes(end[-_TAIL:-4], "little") + _TAIL + _SIZE
    if len(end) < needed <= size:
        end = _last(stream, size, needed)
    found, footer = end[-needed : _SIZE - needed], end[_SIZE - needed :]
    if needed > len(end) or found != _digest(footer):
        raise ValueError("the checksum of its footer does not fit")
    return footer


def _last(stream: BinaryIO | io.RawIOBase, size: int, length: int) -> bytes:
    stream.seek(max(0, size - length))
    return stream.read() or b""


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()
