# SPDX-License-Identifier: Apache-2.0
"""The rows that are left to do, as the coordinator gives them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.job.input.listing import Listing
from airflow_provider_raybatch.job.input.survey import Chunk, Source
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.row_order.buckets import Bucket
from airflow_provider_raybatch.job.scheduling.row_index import Ordinals, RowIndex

_ROWS_OF_TEXT = 1024
"""Rows of a text file that are read at once. A row group of Parquet, or a batch of Arrow, can only be decoded
whole."""
_WHOLE = 2**62


class AnsweredBefore(Protocol):
    """Where answers are that were there before the job."""

    def places(self) -> Iterable[tuple[Any, Keys]]:
        """The keys of their requests, by the file that has them."""


@dataclass(frozen=True)
class Input:
    """The rows to be done. The queue numbers them in the order of `chunks`.

    :param chunks: what is read at once: in the order of the input, or in buckets.
    :param sizes: bytes of each.
    :param done_mask: for each row whether nothing is to be done for it, a bit each.
    :param repetitions: by number of a row, how many rows before it ask the same sampled request.
    :param in_order: whether rows are to begin in the order of their numbers.
    :param earlier: which requests have answers, for those that are known only when they arise.
    """

    chunks: Sequence[Chunk] | Sequence[Bucket]
    sizes: Sequence[int]
    done_mask: npt.NDArray[np.uint8]
    repetitions: Repetitions = field(default_factory=Repetitions)
    in_order: bool = False
    earlier: AnsweredBefore | None = None

    def pieces(self) -> RowIndex:
        """The rows as the queue sees them."""
        rows = [chunk.rows for chunk in self.chunks]
        done = np.unpackbits(self.done_mask, count=sum(rows)).astype(np.bool_)
        return RowIndex(rows, self.sizes, done, self.in_order)

    def numbers(self, ordinals: Ordinals) -> Ordinals:
        """The numbers of rows of the input, in the queue's order."""
        order = [chunk.ordinals for chunk in self.chunks if isinstance(chunk, Bucket)]
        return np.flatnonzero(np.isin(np.concatenate(order), ordinals)) if order else ordinals


def input_of(source: Source, done_mask: RowMask, repetitions: Repetitions | None = None) -> Input:
    """What is left to do of an input, without the rows of `done_mask`."""
    chunks = source.chunks(_WHOLE if source.listing.has_groups else _ROWS_OF_TEXT)
    return Input(chunks, _sizes(source.listing, chunks), np.packbits(done_mask), repetitions or Repetitions())


def _sizes(listing: Listing, chunks: Sequence[Chunk]) -> list[int]:
    """Bytes of each chunk: of Parquet or Arrow, its share of the file's rows."""
    rows: dict[int, int] = {}
    for chunk in chunks:
        rows[chunk.file] = rows.get(chunk.file, 0) + chunk.rows
    return [
        chunk.stop - chunk.start
        if chunk.group < 0
        else listing.files[chunk.file].size * chunk.rows // rows[chunk.file]
        for chunk in chunks
    ]
