# SPDX-License-Identifier: Apache-2.0
"""Ways in which a disk or a network damages a file."""

from __future__ import annotations

import io
from collections.abc import Callable

import pyarrow.parquet as pq

Damage = Callable[[bytes], bytes]


def flipped(content: bytes, bit: int) -> bytes:
    """Return the content with one other bit."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def in_a_page(content: bytes) -> bytes:
    """Change the responses of a part."""
    group = pq.read_metadata(io.BytesIO(content)).row_group(0)
    columns = (group.column(number) for number in range(group.num_columns))
    column = next(one for one in columns if one.path_in_schema == "output.response")
    start = column.dictionary_page_offset or column.data_page_offset
    return flipped(content, 8 * (start + column.total_compressed_size - 1))


def in_the_footer(content: bytes) -> bytes:
    return flipped(content, 8 * (len(content) - 200))


def unreadable(content: bytes) -> bytes:
    return b"x" * len(content)


def cut(content: bytes) -> bytes:
    return content[:-200]


def emptied(content: bytes) -> bytes:
    return b""


ALL: tuple[Damage, ...] = (in_a_page, in_the_footer, unreadable, cut, emptied)
OF_SIZE: tuple[Damage, ...] = (cut, emptied)
OF_CONTENT: tuple[Damage, ...] = (in_a_page, in_the_footer, unreadable)
