# SPDX-License-Identifier: Apache-2.0
"""Request keys, 16 bytes each, as Arrow's ``binary(16)`` and as NumPy's ``S16`` on one buffer.

NumPy drops trailing NUL bytes of a key that is taken out as Python ``bytes``, so no key is taken out;
comparisons between keys are not affected. To search, a key is two big-endian 64-bit halves: they have the
order of the bytes, and comparing them is several times faster.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

KEY = pa.binary(16)
"""Arrow type of a key column."""

Keys: TypeAlias = npt.NDArray[np.bytes_]
Half: TypeAlias = npt.NDArray[np.uint64]
MOST_RANGES = 256
"""Values of a byte."""


def from_arrow(column: pa.Array | pa.ChunkedArray) -> Keys:
    """A key column as ``S16``; a column in one piece is not copied.

    :raises ValueError: it is not a column of 16 bytes each, or has nulls.
    """
    if not column.type.equals(KEY) or column.null_count:
        raise ValueError(f"key: a column of {KEY} without nulls is needed, not {column.type}")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    arrays = [
        np.frombuffer(chunk.buffers()[1], dtype="S16", count=len(chunk), offset=16 * chunk.offset)
        for chunk in chunks
        if len(chunk)
    ]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype="S16")


def to_arrow(keys: Keys) -> pa.Array:
    """The same keys as an Arrow array."""
    data = pa.py_buffer(np.ascontiguousarray(keys).view(np.uint8))
    return pa.FixedSizeBinaryArray.from_buffers(KEY, len(keys), [None, data])


def halves(keys: Keys) -> tuple[Half, Half]:
    """First and last eight bytes of each key, as numbers in the order of the bytes."""
    return first_halves(keys), _pairs(keys)[:, 1].astype(np.uint64)


def first_halves(keys: Keys) -> Half:
    """The first eight bytes of each key, see :func:`halves`."""
    return _pairs(keys)[:, 0].astype(np.uint64)


def range_of(keys: Keys, number: int) -> npt.NDArray[np.int64]:
    """Which of `number` ranges, at most :data:`MOST_RANGES`, each key is in, by its first byte."""
    first = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 16)[:, 0]
    return first.astype(np.int64) * number // MOST_RANGES


def _pairs(keys: Keys) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(keys).view(">u8").reshape(-1, 2)
