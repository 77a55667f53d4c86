# SPDX-License-Identifier: Apache-2.0
"""The interface of a cache of responses, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.partitions import Arrays


@dataclass(frozen=True)
class Hits:
    """Where keys were found.

    :param places: in the keys that were looked up.
    :param file: numbers of files, as the cache counts them.
    :param row: rows in the files.
    """

    places: npt.NDArray[np.int64]
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class CachedRows(Arrays):
    """Rows, and where the answer of each is (see :class:`Hits`). Several may have the same key."""

    KIND: ClassVar[np.dtype[Any]] = np.dtype([
        ("ordinals", "i8"),
        ("keys", "S16"),
        ("file", "i4"),
        ("row", "i4"),
    ])

    ordinals: npt.NDArray[np.int64]
    keys: Keys
    file: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]


class Responses(Protocol):
    """A cache of responses under their request keys."""

    def lookup(self, keys: Keys) -> Hits:
        """Find `keys`, which are sorted and unique."""

    def read(self, rows: CachedRows, most: int) -> pa.Table | None:
        """The answers: ``hit`` (position in `rows`), ``output`` and ``paid_by``.

        A row that is not in the table counts as a miss: its file is gone.

        :param most: bytes. If several rows have more, the result is ``None``.
        """


NO_ANSWERS = pa.table({
    "output": pa.nulls(0),
    "paid_by": pa.array([], pa.string()),
    "hit": pa.array([], pa.int64()),
})
"""The columns of :meth:`Responses.read`."""
