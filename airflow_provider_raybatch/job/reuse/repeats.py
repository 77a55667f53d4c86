# SPDX-License-Identifier: Apache-2.0
"""What a search among the keys of an input has found, so that no later attempt searches again.

Sampled requests that rows repeat are numbered, which takes the keys of all rows. So the first attempt that
makes these keeps the numbers, and which older parts it searched, beside its parts. A resume needs only the
keys of its missing rows, or none.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import REPEATS
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.request import key_array, keys
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.partitions import Arrays, Partitions
from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys, ranges_for
from airflow_provider_raybatch.storage.checksum import checked, with_checksum
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import Folder

_NOTE = b"raybatch.search"
Ordinals: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Repeats(Arrays):
    """Rows that make the same sampled request as earlier rows, so that each gets a response of its own.

    :param keys: of the requests, without the numbers.
    :param numbers: how many earlier rows make the same.
    """

    KIND: ClassVar[np.dtype[Any]] = np.dtype([("ordinals", "i8"), ("keys", "S16"), ("numbers", "i4")])

    ordinals: Ordinals
    keys: Keys
    numbers: Ordinals

    def numbers_of(self, ordinals: Ordinals) -> Ordinals:
        """For each of these, how many earlier rows make the same sampled request."""
        found: Ordinals = np.zeros(len(ordinals), np.int64)
        there = np.isin(ordinals, self.ordinals)
        order = np.argsort(self.ordinals)
        found[there] = self.numbers[order][np.searchsorted(self.ordinals[order], ordinals[there])]
        return found


def repeats_of(some: RequestKeys) -> Repeats:
    """Find them.

    :param some: rows that include all equal ones. Ordinals ascend; keys are not yet numbered.
    """
    numbers = keys.repetitions(some.keys, ~some.greedy)
    rows = np.flatnonzero(numbers)
    return Repeats(some.ordinals[rows], some.keys[rows], numbers[rows])


@dataclass(frozen=True)
class Search:
    """What is known without making the keys of all rows.

    :param repeats: in ranges of keys.
    :param rows: of the input when its keys were made; a `limit` may have cut it.
    :param searched: paths of the searched parts of other inputs and configurations.
    """

    repeats: Partitions[Repeats]
    rows: int
    searched: frozenset[str]

    def write(self, folder: Folder, part_folder: str) -> None:
        """Keep it for later attempts, a file for each range; call it after all cached responses are written.

        :param part_folder: of this driver.
        """
        files = self.repeats.number
        for number, found in enumerate(self.repeats):
            table = pa.table({
                "ordinal": found.ordinals,
                "number": found.numbers,
                "key": key_array.to_arrow(found.keys),
            })
            is_last = number == files - 1
            searched = sorted(self.searched) if is_last else []
            note = json.dumps({"rows": self.rows, "searched": searched, "files": files})
            content = as_parquet(table.replace_schema_metadata({_NOTE: note}), compression="zstd")
            name = f"{f'{number}-' if files > 1 else ''}{REPEATS}"
            folder.write(f"{part_folder}/{name}", with_checksum(content))


def read_search(folder: Folder, entries: Iterable[Entry], rows: int) -> Search | None:
    """What earlier attempts have kept; ``None`` if that does not cover all `rows` of the input.

    :param entries: the files of one input and one set of requests.
    """
    kept: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.path.endswith(REPEATS):
            kept.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    found: Search | None = None
    for files in kept.values():
        if (one := _read(folder, files, rows)) is not None:
            found = replace(one, searched=one.searched | (found.searched if found else frozenset()))
    return found


def _read(folder: Folder, files: Sequence[Entry], rows: int) -> Search | None:
    """The search of one driver, if all of its files are there and cover the input."""
    number = ranges_for(rows)
    found = Partitions(Repeats, number)
    searched: set[str] = set()
    for entry in files:
        with folder.open(entry.path, entry.size) as stream:  # a large one by several requests
            content = stream.read()
        try:
            table = pq.read_table(io.BytesIO(checked(content)))
            note = json.loads((table.schema.metadata or {})[_NOTE])
            if note["rows"] < rows or note["files"] != len(files):
                return None
            searched.update(note["searched"])
            ordinals, numbers = (table[name].to_numpy() for name in ("ordinal", "number"))
            own = key_array.from_arrow(table["key"].combine_chunks())
            near = Repeats(ordinals, own, numbers).where(ordinals < rows)
            found.add(near, key_array.range_of(near.keys, number))
        except (pa.ArrowException, OSError, LookupError, ValueError):
            return None  # damaged: all keys are made again
    return Search(found, rows, frozenset(searched))
