# SPDX-License-Identifier: Apache-2.0
"""The user's own names of the rows: each row has one, and no two have the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.preflight.input_check import Source
from airflow_provider_raybatch.job.source.chunks import Chunk
from airflow_provider_raybatch.job.source.reading import Reader
from airflow_provider_raybatch.job.source.table import as_text

_ROWS_PER_CHUNK = 4096
_THREADS = 8


def check_ids(source: Source, column: str, credentials: AwsCredentials | None) -> None:
    """Read the ids of all rows.

    Only a hash of each is kept, 8 bytes a row; those that meet are looked at again.

    :raises PreflightError: a row has no id, or two rows have the same.
    :raises StorageError: the source can't be read.
    """
    chunks = source.chunks(_ROWS_PER_CHUNK)

    def read(chunk: Chunk) -> list[str | None]:
        rows = Reader(source.listing, [column], credentials).read(chunk).rows
        # A line that is no row has no id, and becomes a dead letter.
        return [as_text(row.get(column)) if isinstance(row, dict) else "" for row in rows]

    with ThreadPoolExecutor(_THREADS) as pool:
        found = zip(chunks, pool.map(read, chunks), strict=True)
        hashes = [_hashed(ids, chunk, column) for chunk, ids in found]
    together = np.sort(np.concatenate([*hashes, np.empty(0, np.int64)]))
    suspects = set(together[1:][together[1:] == together[:-1]].tolist())
    if suspects:
        _refuse_twins(suspects, chunks, read, column)


def _hashed(ids: Sequence[str | None], chunk: Chunk, column: str) -> npt.NDArray[np.int64]:
    if None in ids:
        raise PreflightError(
            f"id_column: row {chunk.ordinal + ids.index(None)} has no value in column {column!r}; every row "
            "needs an id, or leave id_column out."
        )
    return np.array([hash(one) for one in ids if one], np.int64)


def _refuse_twins(
    suspects: set[int], chunks: Sequence[Chunk], read: Callable[[Chunk], list[str | None]], column: str
) -> None:
    seen: dict[str, int] = {}
    for chunk in chunks:
        for position, one in enumerate(read(chunk)):
            if not one or hash(one) not in suspects:
                continue
            if one in seen:
                raise PreflightError(
                    f"id_column: rows {seen[one]} and {chunk.ordinal + position} both have {one!r} in column "
                    f"{column!r}; ids name rows, so each may be there once."
                )
            seen[one] = chunk.ordinal + position
