# SPDX-License-Identifier: Apache-2.0
"""How large a store is, and how old."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from airflow_provider_raybatch.contract.layout import STORE_DATA
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.reuse.store.index import segments, visit
from airflow_provider_raybatch.job.reuse.store.segment import FOREVER, Segment
from airflow_provider_raybatch.storage.folder import Folder


@dataclass(frozen=True)
class StoreSize:
    """Figures of a store.

    :param rows: entries of the index; a response that was paid for twice counts twice until compaction.
    :param submissions: number of drivers with responses in the store.
    :param oldest: when the oldest response was stored, in seconds since 1970; ``None`` in an empty store.
    """

    rows: int
    expired: int
    segments: int
    index_bytes: int
    data_files: int
    data_bytes: int
    submissions: int
    oldest: int | None
    newest: int | None
    unusable: int

    def text(self) -> str:
        """As a sentence."""
        return (
            f"{count_of(self.rows, 'response')} ({self.expired:,} expired) of "
            f"{count_of(self.submissions, 'submission')}, stored "
            f"{_day(self.oldest)} to {_day(self.newest)}; {self.data_bytes / 1e6:,.1f} MB in "
            f"{count_of(self.data_files, 'data file')}, {self.index_bytes / 1e6:,.1f} MB in "
            f"{count_of(self.segments, 'segment')} "
            f"of the index ({self.unusable:,} unreadable)"
        )


def size_of_store(folder: Folder, now: float) -> StoreSize:
    """Count what is in the store. Reads only the columns with times of the index."""

    def look(segment: Segment) -> tuple[int, int, int, int]:
        at, until = segment.times()
        return len(at), int((until <= now).sum()), int(at.min(initial=FOREVER)), int(at.max(initial=0))

    unusable: list[str] = []
    found = [one for one in visit(folder, look, unusable) if one[0]]
    index, data = segments(folder), folder.list(STORE_DATA)
    files = [entry for entry in data if entry.path.endswith(".parquet")]
    return StoreSize(
        rows=sum(one[0] for one in found),
        expired=sum(one[1] for one in found),
        segments=len(index),
        index_bytes=sum(entry.size for entry in index),
        data_files=len(files),
        data_bytes=sum(entry.size for entry in data),
        submissions=len({entry.path.split("/")[2] for entry in files}),
        oldest=min((one[2] for one in found), default=None),
        newest=max((one[3] for one in found), default=None),
        unusable=len(unusable),
    )


def _day(at: int | None) -> str:
    if at is None:
        return "never"
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).date().isoformat()
