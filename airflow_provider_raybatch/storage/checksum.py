# SPDX-License-Identifier: Apache-2.0
"""Find flipped bits before a file is parsed: checksums of whole files, and of Parquet footers.

Parquet has checksums of pages, but none of the footer. A flipped bit there renames a column, or ends the
process: Arrow raises some errors where Python can't catch them.
"""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

_SIZE = 16
_MARK = b"RBF1"
"""Begins the checksum of a footer, which other Parquet files lack."""
_TAIL = 8
"""Bytes after the footer: its length, and Parquet's mark."""
_ENDS = (b"PAR1", b"PARE")
"""Parquet's marks. In other files, such as text, what would be the length asks for gigabytes."""
_READ_AT_ONCE = 64 * 1024
"""Bytes of the end that one request reads; most footers have fewer."""


def with_checksum(content: bytes) -> bytes:
    """`content` with a checksum at its end."""
    return content + _digest(content)


def checked(content: bytes) -> bytes:
    """What :func:`with_checksum` was given. :raises ValueError: it has changed."""
    inner = content[:-_SIZE]
    if len(content) < _SIZE or _digest(inner) != content[-_SIZE:]:
        raise ValueError("its checksum does not fit")
    return inner


class DamagedFooterError(OSError, ValueError):
    """A Parquet file with another footer than was written. pyarrow raises OSError for damage, too."""


def with_footer_checksum(parquet: bytes) -> bytes:
    """The same Parquet file with a checksum of its footer before the footer, where readers find a gap."""
    place = len(parquet) - _TAIL - int.from_bytes(parquet[-_TAIL:-4], "little")
    footer = parquet[place:]
    return b"".join((memoryview(parquet)[:place], _MARK, _digest(footer), footer))


def checked_footer(stream: BinaryIO | io.RawIOBase, needed: bool = True) -> bytes:
    """The footer of a Parquet file, which ``pq.read_metadata`` takes.

    :param needed: whether it must have a checksum; files of other software have none.
    :raises DamagedFooterError: it is damaged.
    """
    size = stream.seek(0, io.SEEK_END)
    end = _last(stream, size, _READ_AT_ONCE)
    if end[-4:] not in _ENDS:
        raise DamagedFooterError("it does not end as Parquet does")
    length = int.from_bytes(end[-_TAIL:-4], "little") + _TAIL
    with_check = length + len(_MARK) + _SIZE
    if len(end) < with_check and len(end) < size:
        end = _last(stream, size, with_check)
    if length > len(end):
        raise DamagedFooterError("its footer is cut off")
    footer, check = end[-length:], end[:-length][-len(_MARK) - _SIZE :]
    if (check.startswith(_MARK) or needed) and check != _MARK + _digest(footer):
        raise DamagedFooterError("the checksum of its footer does not fit")
    return footer


def _last(stream: BinaryIO | io.RawIOBase, size: int, length: int) -> bytes:
    stream.seek(max(0, size - length))
    return stream.read() or b""


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SIZE).digest()
