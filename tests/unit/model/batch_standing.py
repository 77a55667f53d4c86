# SPDX-License-Identifier: Apache-2.0
"""What the files of a batch of the Batch API say about it, and what must hold for them alone."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from airflow_provider_raybatch.batch_api.store.records import BatchEnd
from airflow_provider_raybatch.batch_api.store.store import BatchStore

from .batch_job import BATCH, ROWS, Disk

SECRET = b"a secret of the tests, long enough"
_RANKS = {"validating": 0, "in_progress": 1, "finalizing": 2, "cancelling": 2}


@dataclass(frozen=True)
class Standing:
    """What the files say about the batch.

    :param rank: of its status, which never falls.
    :param counts: lines in all, answered and failed; no count falls.
    """

    status: str
    rank: int
    counts: tuple[int, int, int]
    ended: BatchEnd | None


@functools.lru_cache(maxsize=512)
def standing_of(files: frozenset[tuple[str, bytes]]) -> Standing:
    """Read files as a process that has just begun does, and check them; once, since plays meet equal ones.

    :raises AssertionError: an end does not fit its files.
    """
    disk = Disk(dict(files))
    store = BatchStore(disk, SECRET)
    state = store.state(BATCH)
    assert state is not None
    rank = 3 if state.is_over else _RANKS.get(state.status, 2)
    if state.ended is not None:
        _check_files(store, state.ended)
    counts = (state.counts.total, state.counts.completed, state.counts.failed)
    return Standing(state.status, rank, counts, state.ended)


def _check_files(store: BatchStore, end: BatchEnd) -> None:
    output, errors = _ids(store, end.output_file_id), _ids(store, end.error_file_id)
    if end.decision == "completed":
        assert sorted(output) == list(range(ROWS)), "a line has no answer"
    if output or errors:
        assert len(output) == end.counts.completed, "counts and files differ"
        assert sorted(output + errors) == list(range(ROWS)), "a line is there twice, or not at all"


def _ids(store: BatchStore, file_id: str | None) -> list[int]:
    if file_id is None:
        return []
    record = store.file(file_id)
    assert record is not None, "a file has no record"
    assert all(store.root.head(piece.path) for piece in record.content), "a file has no content"
    content = b"".join(store.root.read(piece.path) for piece in record.content)
    assert len(content) == record.bytes
    return [int(one) for one in content.split()]
