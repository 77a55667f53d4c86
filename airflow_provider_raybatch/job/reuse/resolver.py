# SPDX-License-Identifier: Apache-2.0
"""Which rows need no engine, found in one range of request keys after the other.

Equal requests have equal keys, so a range is resolved without the others. Beside a bit or byte a row, the
driver holds one range at a time (`partitions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.parts.ledger import RowMask
from airflow_provider_raybatch.job.parts.part import Origin, Part
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.reuse.cached_parts import matched, write_parts
from airflow_provider_raybatch.job.reuse.hits import CachedRows, Responses
from airflow_provider_raybatch.job.reuse.partitions import Partitions
from airflow_provider_raybatch.job.reuse.repeats import Ordinals, Repeats
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys, ranges_for
from airflow_provider_raybatch.job.work import Job


@dataclass(frozen=True)
class CachedResponses:
    """Cached responses of one kind, to be written before the engines start.

    :param rows: by ordinal.
    :param responses: where they are read from.
    """

    rows: Partitions[CachedRows]
    responses: Responses
    origin: Origin

    def add(self, cached: CachedRows, rows_in_all: int) -> None:
        """Add rows of an input of so many."""
        self.rows.add(cached, _range_of(cached.ordinals, self.rows, rows_in_all))

    def write(self, job: Job, chunks: Sequence[Chunk]) -> Iterator[list[Part]]:
        """Write them as parts; see :func:`~airflow_provider_raybatch.job.reuse.cached_parts.write_parts`."""
        for cached in self.rows:
            written, _ = write_parts(job, chunks, cached, self.responses, self.origin)
            yield written


class ReuseResolver:
    """Finds the rows that need no engine.

    :ivar rows: those that need none, by ordinal.
    """

    def __init__(self, size: int, resolved: RowMask, found: Sequence[CachedResponses]) -> None:
        self.rows: RowMask = np.zeros(size, np.bool_)
        number = ranges_for(size)
        self._resolved, self._found = resolved, found
        self._numbered = Partitions(RequestKeys, number)
        self._repeated = Partitions(Repetitions, number)

    def resolve(self, repeats: Partitions[Repeats], own: Partitions[RequestKeys] | None) -> None:
        """Resolve one range of keys after the other.

        :param repeats: of all rows.
        :param own: keys of the rows, if they are to be looked up.
        """
        for place, some in enumerate(repeats):
            self._resolve(some, None if own is None else own[place])
        for numbered in self._numbered:  # each has a key of its own, in a range of its own
            if len(numbered):
                self._look_up(numbered)

    def _resolve(self, repeats: Repeats, own: RequestKeys | None) -> None:
        if own is not None:
            remaining = own.where(self._is_open(own.ordinals))
            numbers = repeats.numbers_of(remaining.ordinals)
            later = (numbers > 0) & (self._numbered.number > 1)  # their numbered keys are in any range
            numbered = remaining.where(later).numbered(numbers[later])
            self._numbered.add(numbered, key_array.range_of(numbered.keys, self._numbered.number))
            self._look_up(remaining.where(~later).numbered(numbers[~later]))
        sampled = repeats.where(~self._resolved[repeats.ordinals])
        repeated = Repetitions(sampled.ordinals, sampled.numbers)
        self._repeated.add(repeated, _range_of(sampled.ordinals, self._repeated, len(self.rows)))

    @property
    def repetitions(self) -> Repetitions:
        """Of all rows that are not resolved, those that repeat a sampled request."""
        # Filled in place: a second copy would need the most memory.
        found = Repetitions(np.empty(len(self._repeated), np.int64), np.empty(len(self._repeated), np.int32))
        stop = 0
        for some in self._repeated:
            start, stop = stop, stop + len(some)
            order = np.argsort(some.rows)
            found.rows[start:stop], found.numbers[start:stop] = some.rows[order], some.numbers[order]
        return found

    def _is_open(self, ordinals: Ordinals) -> RowMask:
        return ~(self._resolved[ordinals] | self.rows[ordinals])

    def _look_up(self, remaining: RequestKeys) -> None:
        for one in self._found:
            cached = matched(remaining.ordinals, remaining.keys, one.responses)
            one.add(cached, len(self.rows))
            self.rows[cached.ordinals] = True
            remaining = remaining.where(~np.isin(remaining.ordinals, cached.ordinals))


def _range_of(ordinals: Ordinals, ranges: Partitions[Any], rows: int) -> Ordinals:
    return ordinals * ranges.number // rows
