# SPDX-License-Identifier: Apache-2.0
"""Names of files and batches, and their keys in the index of their user.

Names of clients are checked before they become part of a path. Keys hold what listings, limits and expiry
need to know, so none of them reads the records of what it doesn't show.
"""

from __future__ import annotations

import re
import secrets
from functools import lru_cache
from typing import NamedTuple

from airflow_provider_raybatch.batch_api.store.records import FileRecord
from airflow_provider_raybatch.contract.text import hex_digest

TASK_ID = "answer"
"""The task of a batch's DAG run."""
_FILE = re.compile(r"file-[0-9a-f]{32}")
_BATCH = re.compile(r"batch_[0-9a-f]{32}")
_FILE_KEY = re.compile(
    rf"(\d{{13}})-({_FILE.pattern})\.(\d{{1,12}})\.(\d{{1,18}})\.([a-z_]{{1,32}})", re.ASCII
)
_BATCH_KEY = re.compile(rf"(\d{{13}})-({_BATCH.pattern})", re.ASCII)
_LATEST = 10**13
"""Milliseconds, in the year 2286: keys count down from here, so that listings begin with the newest."""


def new_file_id() -> str:
    """A name that can't be guessed."""
    return f"file-{secrets.token_hex(16)}"


def new_batch_id() -> str:
    """A name that can't be guessed; its DAG run has it, too."""
    return f"batch_{secrets.token_hex(16)}"


def is_file_id(text: str) -> bool:
    """Whether a text may be the name of a file."""
    return _FILE.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether a text may be the name of a batch."""
    return _BATCH.fullmatch(text) is not None


def output_file_id(batch_id: str, kind: str) -> str:
    """The name of a file that a batch makes, so that whoever ends the batch gives it the same one.

    :param kind: ``output`` or ``error``.
    """
    return f"file-{hex_digest(f'{batch_id}/{kind}')}"


def newest_first(created_at: float, name: str) -> str:
    """A key of `name`; in the order of keys, later ones come first.

    :param created_at: epoch seconds.
    """
    return f"{_LATEST - int(created_at * 1000):013d}-{name}"


def owner_digest(owner: str) -> str:
    """A user's folder, whose name must not depend on what user names may hold."""
    return hex_digest(owner)


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
    found = _FILE_KEY.fullmatch(key)
    return found and ListedFile(found[2], _created_at(found[1]), int(found[3]), int(found[4]), found[5])


def listed_batch(key: str) -> ListedBatch | None:
    """What a key tells; ``None`` where it is not a batch's."""
    found = _BATCH_KEY.fullmatch(key)
    return found and ListedBatch(found[2], _created_at(found[1]))


def _created_at(countdown: str) -> float:
    return (_LATEST - int(countdown)) / 1000
