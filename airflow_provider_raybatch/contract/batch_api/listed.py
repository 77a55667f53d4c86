# SPDX-License-Identifier: Apache-2.0
"""Keys of a user's index, which hold what listings, limits and expiry need to know of files and batches.

So none of them reads the records of what it doesn't show.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from airflow_provider_raybatch.contract.batch_api.ids import created_at, newest_first
from airflow_provider_raybatch.contract.batch_api.records import FileRecord

_FILE = re.compile(r"(\d{13})-(file-[0-9a-f]{32})\.(\d{1,12})\.(\d{1,18})\.([a-z_]{1,32})", re.ASCII)
_BATCH = re.compile(r"(\d{13})-(batch_[0-9a-f]{32})", re.ASCII)


class ListedFile(NamedTuple):
    """A file, as its key tells.

    :param created_at: epoch seconds, as `expires_at`.
    :param bytes: of the whole content.
    """

    id: str
    created_at: float
    expires_at: int
    bytes: int
    purpose: str


class ListedBatch(NamedTuple):
    """A batch, as its key tells."""

    id: str
    created_at: float


def file_key(record: FileRecord) -> str:
    """The key of a file; in the order of keys, later files come first."""
    place = newest_first(record.created_at, record.id)
    return f"{place}.{int(record.expires_at)}.{record.bytes}.{record.purpose}"


@lru_cache(maxsize=2**17)  # some 60 MB where as many are listed; each call of their owner looks at all
def listed_file(key: str) -> ListedFile | None:
    """What a key tells; ``None`` where it is not a file's."""
    found = _FILE.fullmatch(key)
    return found and ListedFile(found[2], created_at(found[1]), int(found[3]), int(found[4]), found[5])


def listed_batch(key: str) -> ListedBatch | None:
    """What a key tells; ``None`` where it is not a batch's."""
    found = _BATCH.fullmatch(key)
    return found and ListedBatch(found[2], created_at(found[1]))
