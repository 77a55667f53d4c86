# SPDX-License-Identifier: Apache-2.0
"""Columns of many rows, cut into ranges; large ones lie in a temporary file.

A join or a search for repeats that cuts both sides alike needs one range of each in memory: the partitioning
of the Grace hash join (Kitsuregawa et al., New Generation Computing 1(1), 1983).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

_MOST_IN_MEMORY = 16 * 2**20
"""Bytes that wait until they are written together. A small input never needs a file."""

Records: TypeAlias = npt.NDArray[Any]
Numbers: TypeAlias = npt.NDArray[np.int64]


class Columns(Protocol):
    """A dataclass of arrays of equal length, whose fields are those of `KIND`."""

    KIND: ClassVar[np.dtype[Any]]

    def __init__(self, *columns: Any) -> None: ...


C = TypeVar("C", bound=Columns)
A = TypeVar("A", bound="Arrays")


class Arrays(Columns):
    """The base of such a dataclass, whose first field has the ordinals of the rows."""

    def __len__(self) -> int:
        return len(getattr(self, _names(self.KIND)[0]))

    def where(self: A, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> A:
        """Some of the rows, by place."""
        return type(self)(*(getattr(self, name)[chosen] for name in _names(self.KIND)))


class Partitions(Generic[C]):
    """Rows of one kind, in so many ranges.

    :param kind: of the rows.
    """

    def __init__(self, kind: type[C], number: int) -> None:
        self.number = number
        self._kind = kind
        self._waiting: list[list[Records]] = [[] for _ in range(number)]
        self._waiting_bytes = 0
        self._file: IO[bytes] | None = None
        self._written: list[list[tuple[int, int]]] = [[] for _ in range(number)]
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def add(self, some: C, ranges: Numbers) -> None:
        """Add rows. Those of a range stay in the order in which they are added.

        :param ranges: for each row, the number of its range.
        :raises RaybatchError: the disk is full.
        """
        records = np.empty(len(ranges), self._kind.KIND)
        for name in _names(self._kind.KIND):
            records[name] = getattr(some, name)
        if self.number > 1:
            order = np.argsort(ranges, kind="stable")
            records, ranges = records[order], ranges[order]
        bounds: Numbers = np.asarray(np.searchsorted(ranges, np.arange(self.number + 1)), np.int64)
        for place in np.flatnonzero(np.diff(bounds)).tolist():
            self._waiting[place].append(records[bounds[place] : bounds[place + 1]])
        self._rows += len(records)
        self._waiting_bytes += records.nbytes
        if self._waiting_bytes > _MOST_IN_MEMORY:
            self._write()

    def pieces(self, place: int) -> Iterator[C]:
        """The rows of a range, some of them at a time."""
        for start, rows in self._written[place]:
            assert self._file is not None
            self._file.seek(start)
            yield self._columns(
                np.frombuffer(self._file.read(rows * self._kind.KIND.itemsize), self._kind.KIND)
            )
        yield from map(self._columns, self._waiting[place])

    def __getitem__(self, place: int) -> C:
        found = list(self.pieces(place)) or [self._columns(np.empty(0, self._kind.KIND))]
        if len(found) == 1:
            return found[0]
        return self._kind(
            *(np.concatenate([getattr(one, name) for one in found]) for name in _names(self._kind.KIND))
        )

    def __iter__(self) -> Iterator[C]:
        return (self[place] for place in range(self.number))

    def _columns(self, records: Records) -> C:
        return self._kind(*(np.ascontiguousarray(records[name]) for name in _names(self._kind.KIND)))

    def _write(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is gone when this object is
            start = self._file.seek(0, 2)
            for place, arrays in enumerate(self._waiting):
                rows = sum(map(len, arrays))
                if rows:
                    self._written[place].append((start, rows))
                    for records in arrays:
                        start += self._file.write(records.tobytes())
                arrays.clear()
            self._file.flush()
        except OSError as error:
            folder = os.environ.get("TMPDIR", "/tmp")
            raise RaybatchError(
                f"TMPDIR: keys of requests do not fit into {folder!r} on the node of the job's "
                f"driver ({error.strerror}); free some space there, 120 bytes a row at most, or set TMPDIR "
                "to a larger place.",
                FailureClass.STORAGE,
            ) from error
        self._waiting_bytes = 0


def _names(kind: np.dtype[Any]) -> tuple[str, ...]:
    return kind.names or ()
