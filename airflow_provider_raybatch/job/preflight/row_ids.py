# SPDX-License-Identifier: Apache-2.0
"""Checks the id column: each row has an id of its own."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Chunk, Source
from airflow_provider_raybatch.job.input.table import as_text

_THREADS = 8


def check_ids(
    source: Source, column: str, credentials: AwsCredentials | None, are_lines: bool = False
) -> None:
    """Read the ids of all rows, keep 8 bytes of hash each, and read those with equal hashes again.

    :param are_lines: whether the rows are lines of an OpenAI batch file; without an id, one gets an error.
    :raises PreflightError: a row has no id, or two rows have the same.
    :raises StorageError: the source can't be read.
    """
    chunks = source.chunks(ROWS_PER_CHUNK)
    runs = [list(run) for _, run in groupby(chunks, key=_decoded_together)]

    def hashes(run: Sequence[Chunk]) -> npt.NDArray[np.int64]:
        # One reader per row group, so that the group is decoded once.
        reader = Reader(source.listing, [column], credentials, whole=False)
        found = ((chunk, _ids(reader, chunk, column)) for chunk in run)
        if not are_lines:
            found = ((chunk, _needed(ids, chunk, column)) for chunk, ids in found)
        return np.concatenate([np.array([hash(one) for one in ids if one], np.int64) for _, ids in found])

    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(hashes, runs))
    together = np.sort(np.concatenate([*found, np.empty(0, np.int64)]))
    candidates = set(together[1:][together[1:] == together[:-1]].tolist())
    if candidates:
        reader = Reader(source.listing, [column], credentials, whole=False)
        _refuse_duplicates(candidates, chunks, reader, column, are_lines)


def _decoded_together(chunk: Chunk) -> tuple[int, int]:
    """The same for all chunks of a row group; a chunk of text is read alone."""
    return chunk.file, chunk.group if chunk.group >= 0 else -1 - chunk.ordinal


def _ids(reader: Reader, chunk: Chunk, column: str) -> list[str | None]:
    # A line that is not a row needs no id: it becomes a dead letter.
    # CSV has no null, so an empty text counts as a missing id.
    return [
        as_text(row.get(column)) or None if isinstance(row, dict) else "" for row in reader.read(chunk).rows
    ]


def _needed(ids: list[str | None], chunk: Chunk, column: str) -> list[str | None]:
    if None in ids:
        raise PreflightError(
            f"id_column: row {chunk.ordinal + ids.index(None)} has no value in column {column!r}; every row "
            "needs an id, or leave id_column out."
        )
    return ids


def _refuse_duplicates(
    candidates: set[int], chunks: Sequence[Chunk], reader: Reader, column: str, are_lines: bool
) -> None:
    seen: dict[str, int] = {}
    for chunk in chunks:
        for position, one in enumerate(_ids(reader, chunk, column)):
            if not one or hash(one) not in candidates:
                continue
            if one in seen and are_lines:
                lines = f"source: lines {seen[one] + 1} and {chunk.ordinal + position + 1}"
                then = "answers are found by it, so each may be there once."
                raise PreflightError(
                    f"{lines} both have the {column} {one!r}; {then}",
                    public=f"{lines} have the same {column}; {then}",
                )
            if one in seen:
                rows = f"id_column: rows {seen[one]} and {chunk.ordinal + position}"
                then = f"in column {column!r}; ids name rows, so each may be there once."
                raise PreflightError(
                    f"{rows} both have {one!r} {then}", public=f"{rows} have the same value {then}"
                )
            seen[one] = chunk.ordinal + position
