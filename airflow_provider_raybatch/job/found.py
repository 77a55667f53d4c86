# SPDX-License-Identifier: Apache-2.0
"""Responses that are there already, found by request key: what a place that holds them must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.keys import Keys


@dataclass(frozen=True)
class Hits:
    """Where keys were found, one entry a key that was.

    :param places: into the keys that were asked for.
    :param files: names of files; `file` are indices into them.
    :param rows: row in the file.
    :param paid_by: submission id that paid for the rows of each file.
    """

    places: npt.NDArray[np.int64]
    files: Sequence[str]
    file: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    paid_by: Sequence[str]

    def __len__(self) -> int:
        return len(self.places)

    def part(self, chosen: npt.NDArray[np.int64]) -> Hits:
        """Some of them, by position."""
        return Hits(self.places[chosen], self.files, self.file[chosen], self.rows[chosen], self.paid_by)


class Responses(Protocol):
    """A place that holds responses under their keys."""

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`, which are sorted and unique.

        :raises StorageError: it can't be read.
        """

    def read(self, hits: Hits) -> pa.Table:
        """What the hits are, in their order: ``ok``, ``failure`` and ``output``.

        :raises StorageError: it can't be read.
        """
