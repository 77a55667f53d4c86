# SPDX-License-Identifier: Apache-2.0
"""Give rows the responses that were found for them: parts like those of a replica, without an engine."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.input.chunk_rows import ChunkRows, portions
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.input.table import as_text, one_array
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.part import FAILURE, Origin, Part
from airflow_provider_raybatch.job.parts.reading import MOST_BYTES
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.row_keys import CachedRows, Responses
from airflow_provider_raybatch.job.work import Job, own_columns

_ROWS_AT_ONCE = 20_000
ReadRows: TypeAlias = Callable[
    [Chunk, npt.NDArray[np.int64], pa.StructArray], Sequence[tuple[ChunkRows, int]]
]
"""Rows of a chunk by their positions and outputs, each as what was read with it and its place there."""


def matched(ordinals: npt.NDArray[np.int64], keys: Keys, source: Responses) -> CachedRows:
    """The rows with a key that `source` has.

    :param keys: of the rows; several may have the same.
    """
    unique, asked = np.unique(keys, return_inverse=True)
    hits = source.lookup(unique)
    hit_of: npt.NDArray[np.int64] = np.full(len(unique), -1, np.int64)
    hit_of[hits.places] = np.arange(len(hits))
    of_row = hit_of[asked]
    there = of_row >= 0
    found = of_row[there]
    return CachedRows(ordinals[there], keys[there], hits.file[found], hits.row[found])


def write_parts(
    job: Job,
    chunks: Sequence[Chunk],
    cached: CachedRows,
    source: Responses,
    origin: Origin,
    read: ReadRows | None = None,
) -> tuple[list[Part], CachedRows]:
    """Write cached answers as parts of this submission.

    :param chunks: of the input, in order.
    :param read: reads rows of a chunk; by default from the source.
    :returns: the parts, and the rows that `source` lacks now, by ordinal.
    """
    if not len(cached):
        return [], cached
    cached = cached.where(np.argsort(cached.ordinals))
    read = read or _from_source(job)
    written: list[Part] = []
    is_lost: npt.NDArray[np.bool_] = np.ones(len(cached), np.bool_)
    for group, low, found in _answers(chunks, cached, source):
        places = found["hit"].to_numpy() + low
        is_lost[places] = False
        for chunk in group:
            start, stop = _span(cached.ordinals[places], chunk)
            if start < stop:
                own = cached.where(places[start:stop])
                answers = found.slice(start, stop - start)
                rows = read(chunk, own.ordinals - chunk.ordinal, one_array(answers["output"]))
                written += _write_chunk(job, chunk, rows, own, answers, origin)
    return written, cached.where(np.flatnonzero(is_lost))


def _from_source(job: Job) -> ReadRows:
    id_column = job.spec.id_column
    reader = Reader(job.listing, [] if id_column is None else [id_column], job.credentials)

    def read(
        chunk: Chunk, positions: npt.NDArray[np.int64], _: pa.StructArray
    ) -> list[tuple[ChunkRows, int]]:
        rows = reader.read(chunk)
        return [(rows, position) for position in positions.tolist()]

    return read


def _write_chunk(
    job: Job,
    chunk: Chunk,
    rows: Sequence[tuple[ChunkRows, int]],
    cached: CachedRows,
    answers: pa.Table,
    origin: Origin,
) -> Iterator[Part]:
    """Write rows of one chunk, in as many parts as their input needs."""
    named = job.spec.id_column
    ids = [None if named is None else _row_id(one.rows[place], named) for one, place in rows]
    arrays = {
        "ordinal": pa.array(cached.ordinals, pa.uint64()),
        "ok": pa.repeat(True, len(cached)),
        "key": key_array.to_arrow(cached.keys),
        "id": pa.array(ids, pa.string()),
        "origin": _origins(answers, origin),
        "paid_by": one_array(answers["paid_by"]),
        "failure": pa.nulls(len(cached), FAILURE),
        "output": job.task.adapted(one_array(answers["output"]), job.task.output_type),
    }
    for portion, columns in portions(rows):
        chosen = pa.array(portion, pa.int64())
        cut = {name: array.take(chosen) for name, array in arrays.items()}
        stem = f"{job.part_folder}/{origin}-{chunk.ordinal:012d}"
        stored = job.task.stored_inputs(own_columns(job, columns))
        yield parts.write_arrays(job.folder, stem, stored, cut)


def _answers(
    chunks: Sequence[Chunk], cached: CachedRows, source: Responses
) -> Iterator[tuple[list[Chunk], int, pa.Table]]:
    """Answers of neighbouring rows, with their chunks and the place of the first row.

    Cut by bytes, since many rows may share a long answer.
    """
    for group, low, high in _groups(_near(chunks, cached.ordinals), cached.ordinals):
        step = high - low
        while low < high:
            some = cached.where(slice(low, min(high, low + step)))
            found = source.read(some, MOST_BYTES)
            if found is None:
                step = len(some) // 2
            else:
                yield group, low, found.sort_by("hit")
                low += len(some)


def _near(chunks: Sequence[Chunk], ordinals: npt.NDArray[np.int64]) -> Sequence[Chunk]:
    """The chunks from that of the first of `ordinals` to that of the last."""
    first, stop = (bisect_right(chunks, int(end), key=attrgetter("ordinal")) for end in ordinals[[0, -1]])
    return chunks[max(0, first - 1) : stop]


def _groups(
    chunks: Sequence[Chunk], ordinals: npt.NDArray[np.int64]
) -> Iterator[tuple[list[Chunk], int, int]]:
    """Neighbouring chunks with about 20,000 rows to write, and the range of `ordinals` in them."""
    group: list[Chunk] = []
    low = high = 0
    for chunk in chunks:
        start, stop = _span(ordinals, chunk)
        if start == stop:
            continue
        if group and stop - low > _ROWS_AT_ONCE:
            yield group, low, high
            group, low = [], start
        group.append(chunk)
        high = stop
    if group:
        yield group, low, high


def _span(ordinals: npt.NDArray[np.int64], chunk: Chunk) -> tuple[int, int]:
    """The range of `ordinals` that lies in `chunk`."""
    stop = chunk.ordinal + chunk.rows
    return int(np.searchsorted(ordinals, chunk.ordinal)), int(np.searchsorted(ordinals, stop))


def _origins(found: pa.Table, origin: Origin) -> pa.Array:
    """`origin`, except for rows that an earlier part took from the response store: they stay ``stored``."""
    origins = pa.repeat(pa.scalar(origin, pa.string()), found.num_rows)
    if origin != "carried":
        return origins
    return pc.if_else(pc.equal(one_array(found["origin"]), "stored"), "stored", origins)


def _row_id(row: object, column: str) -> str | None:
    return as_text(row.get(column)) if isinstance(row, dict) else None
