# SPDX-License-Identifier: Apache-2.0
"""Responses that are there already, found by request key: what a place that holds them must do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.request.key_array import Keys


@dataclass(frozen=True)
class Hits:
    """Where keys were found, one entry a key that was.

    :param places: into the keys that were asked for.
    :param file: which file, as the place that was asked numbers them.
    :param row: of the file.
    """

    places: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def take(self, chosen: npt.NDArray[np.int64]) -> Hits:
        """Some of them, by position; the same one may be taken more than once."""
        return Hits(self.places[chosen], self.file[chosen], self.row[chosen])


class Responses(Protocol):
    """A place that holds responses under their keys."""

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`, which are sorted and unique.

        :raises StorageError: it can't be read.
        """

    def read(self, hits: Hits) -> pa.Table:
        """What the hits are: ``hit`` (position in `hits`), ``ok``, ``failure``, ``output`` and ``paid_by``.

        A hit that is not in the table is none after all: its file is gone.

        :raises StorageError: it can't be read.
        """
