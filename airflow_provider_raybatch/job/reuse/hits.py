# SPDX-License-Identifier: Apache-2.0
"""The interface of a cache of responses, and its lookup result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.request.key_array import Keys


@dataclass(frozen=True)
class Hits:
    """Where keys were found, one entry per key that was.

    :param places: positions in the keys that were looked up.
    :param file: number of the file, as the cache counts them.
    :param row: row in the file.
    """

    places: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def take(self, chosen: npt.NDArray[np.int64]) -> Hits:
        """Some of them, by position; a position may occur more than once."""
        return Hits(self.places[chosen], self.file[chosen], self.row[chosen])


class Responses(Protocol):
    """A cache of responses under their request keys."""

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`, which are sorted and unique.

        :raises StorageError: it can't be read.
        """

    def read(self, hits: Hits) -> pa.Table:
        """The outcomes: ``hit`` (position in `hits`), ``ok``, ``failure``, ``output`` and ``paid_by``.

        A hit that is not in the table counts as a miss: its file is gone.

        :raises StorageError: it can't be read.
        """
