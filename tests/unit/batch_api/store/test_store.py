# SPDX-License-Identifier: Apache-2.0
"""Batches as documents: what counts, and what a poll reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store.records import (
    BatchEnd,
    BatchRecord,
    ForgedRecordError,
    Started,
)
from airflow_provider_raybatch.batch_api.store.store import BatchStore, new_nonce
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome, RequestCounts
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.batch_api import batch_record, batches_of, write_progress
from tests.support.folders import folder, s3_server  # noqa: F401 - fixtures

NOW = 1_790_000_000.0
SECRET = b"a secret of the tests, long enough"


class CountingFolder:
    """A folder that knows what was asked of it."""

    def __init__(self, inner: Folder) -> None:
        self.inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found: Callable[..., Any] = getattr(self.inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            return found(*args, **kwargs)

        return call


def listed(store: Any) -> list[str]:
    """Ann's, by the folder itself, of whose kind it depends how it is listed."""
    return batches_of(BatchStore(store.root.inner, SECRET))


def record() -> BatchRecord:
    return batch_record(NOW)


@pytest.fixture
def root(folder: Folder) -> CountingFolder:  # noqa: F811
    return CountingFolder(folder)


@pytest.fixture
def store(root: CountingFolder) -> BatchStore:
    return BatchStore(root, SECRET)


def test_the_first_record_of_an_id_counts(store: BatchStore) -> None:
    first = record()
    later = first.model_copy(update={"created_at": NOW + 5})
    assert store.add_batch(first) == first
    assert store.add_batch(later) == first
    assert listed(store) == [first.id]


def test_a_repeated_add_lists_a_batch_that_was_not_listed(store: BatchStore, root: CountingFolder) -> None:
    batch = store.add_batch(record())
    [key] = root.list(layout.USERS)
    root.delete([key.path])
    store.add_batch(batch)
    assert listed(store) == [batch.id]


def test_a_batch_follows_its_documents(store: BatchStore) -> None:
    batch = store.add_batch(record())
    seen = [store.state(batch.id)]
    store.mark_triggered(batch.id, NOW)
    store.start(batch.id, Started(at=NOW, total=3, nonce=new_nonce()))
    seen.append(store.state(batch.id))
    write_progress(store, batch.id, 2)
    seen.append(store.state(batch.id))
    store.decide(batch.id, BatchOutcome(decision="completed", at=NOW, nonce=new_nonce()))
    seen.append(store.state(batch.id))
    counts = RequestCounts(total=3, completed=3)
    store.end(
        batch.id, BatchEnd(decision="completed", decided_at=NOW, at=NOW, nonce=new_nonce(), counts=counts)
    )
    seen.append(store.state(batch.id))
    assert [(one.status, one.counts.completed, one.triggered) for one in seen if one is not None] == [
        ("validating", 0, False),
        ("in_progress", 0, True),
        ("in_progress", 2, True),
        ("finalizing", 2, True),
        ("completed", 3, True),
    ]


def test_a_poll_of_a_running_batch_reads_its_progress_alone(store: BatchStore, root: CountingFolder) -> None:
    batch = store.add_batch(record())
    store.start(batch.id, Started(at=NOW, total=3, nonce=new_nonce()))
    write_progress(store, batch.id, 2)
    store.state(batch.id)
    root.calls.clear()
    store.state(batch.id)
    assert root.calls == ["list", "read"]


def test_a_poll_of_an_ended_batch_asks_storage_nothing(store: BatchStore, root: CountingFolder) -> None:
    batch = store.add_batch(record())
    store.end(batch.id, BatchEnd(decision="cancelled", decided_at=NOW, at=NOW, nonce=new_nonce()))
    first = store.state(batch.id)
    root.calls.clear()
    assert store.state(batch.id) == first
    assert root.calls == []


@pytest.mark.parametrize("name", ["", "batch_1", "../files", f"batch_{'0' * 32}", f"file-{'0' * 32}"])
def test_there_is_no_batch_of_another_name(store: BatchStore, name: str) -> None:
    assert store.state(name) is None
    assert store.record(name) is None


def test_a_forged_end_does_not_count(store: BatchStore, root: CountingFolder) -> None:
    batch = store.add_batch(record())
    end = BatchEnd(decision="completed", decided_at=NOW, at=NOW, nonce=new_nonce())
    BatchStore(root, b"another secret, just as long as it").end(batch.id, end)
    with pytest.raises(ForgedRecordError, match="batch_api_secret"):
        store.state(batch.id)
