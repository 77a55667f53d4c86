# SPDX-License-Identifier: Apache-2.0
"""Which requests had answers before a job, for requests that are known only when they arise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from airflow_provider_raybatch.job.parts.part import Part, read_columns
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.job.request import key_array
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.store.data import StoredFile
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.in_order import in_order

_MOST_KEYS = 20_000_000
"""Of 12 bytes each in the coordinator. What is beyond is asked again."""


@dataclass(frozen=True)
class EarlierAnswers:
    """Where they lie.

    :param folder: the destination.
    :param parts: of the task, those of the run last.
    :param store: folder of the response store, if the job has one; older answers than `max_age` seconds are
        not found.
    """

    folder: Folder
    parts: Sequence[Part] = ()
    store: Folder | None = None
    max_age: float | None = None

    def places(self) -> Iterator[tuple[Part | StoredFile, Keys]]:
        """The keys of good answers, by the file that has them; of a key that comes twice, the last counts.

        A file that can't be read has none.

        :raises StorageError: the storage gives no answer.
        """
        left = _MOST_KEYS - sum(part.ok for part in self.parts)
        if self.store is not None and left > 0:
            yield from ResponseStore(self.store, lambda notice: None, self.max_age).keys(left)
        with_answers = [part for part in self.parts if part.ok]
        yield from zip(with_answers, in_order(self._keys, with_answers), strict=True)

    def _keys(self, part: Part) -> Keys:
        with suppress(DamagedPartError):
            table = read_columns(self.folder, part, ["ok", "key"])
            table = table.filter(pc.and_(table["ok"], pc.is_valid(table["key"])))
            return key_array.from_arrow(table["key"])
        return np.empty(0, "S16")


def last_of(parts: Sequence[Part]) -> list[Part]:
    """As many of some parts as the coordinator takes; those that come last."""
    places = np.cumsum([part.ok for part in reversed(parts)])
    return list(parts[len(parts) - int(np.searchsorted(places, _MOST_KEYS, side="right")) :])
