# SPDX-License-Identifier: Apache-2.0
"""How many bytes rows take: a column of text may have 2 GiB in Arrow.

Beyond that, Arrow writes parts that it can't read, and refuses to take, sort or combine rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_BYTES = 256 * 1024 * 1024
"""Of the responses in one array, which is in memory several times."""
Sizes: TypeAlias = npt.NDArray[np.int64]


def row_bytes(column: pa.Array | pa.ChunkedArray) -> Sizes:
    """Bytes of each value, without its offset."""
    if isinstance(column, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.int64), *map(row_bytes, column.chunks)])
    kind = column.type
    if pa.types.is_struct(kind):
        return together(column.flatten(), len(column))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inside = np.concatenate([[0], np.cumsum(row_bytes(column.flatten()))])
        ends = np.concatenate([[0], np.cumsum(_numbers(pc.list_value_length(column)))])
        sizes: Sizes = np.diff(inside[ends])
        return sizes
    try:
        return _numbers(pc.binary_length(column))
    except pa.ArrowNotImplementedError:  # of one size each, or nearly
        return np.full(len(column), -(-column.nbytes // max(1, len(column))), np.int64)


def together(columns: Iterable[pa.Array | pa.ChunkedArray], rows: int) -> Sizes:
    """Bytes of each row of several columns."""
    sizes: Sizes = np.zeros(rows, np.int64)
    for column in columns:
        sizes += row_bytes(column)
    return sizes


def portions(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Runs of rows, as first and one past the last: one row, or at most `most` bytes."""
    start, size = 0, 0
    for place, own in enumerate(sizes):
        if place > start and size + own > most:
            yield start, place
            start, size = place, 0
        size += own
    if start < len(sizes):
        yield start, len(sizes)


def cumulated(ordinals: npt.NDArray[np.int64], sizes: Sizes, most: int) -> list[tuple[int, int]]:
    """Where the bytes of rows lie: ascending ordinals, each with the bytes of all rows up to it.

    :param most: at most so many, of about equal bytes each.
    """
    order = np.argsort(ordinals, kind="stable")
    total = np.cumsum(sizes[order])
    wanted = total[-1] * np.arange(1, most + 1) // most
    places = np.unique(np.minimum(np.searchsorted(total, wanted), len(total) - 1))
    return [(int(ordinals[order[place]]), int(total[place])) for place in places]


def _numbers(lengths: pa.Array) -> Sizes:
    found: Sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found
