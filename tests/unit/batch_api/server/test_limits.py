# SPDX-License-Identifier: Apache-2.0
"""Limits of a user: requests, stored bytes, and batches."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server import limits as module
from airflow_provider_raybatch.batch_api.server.limits import (
    ApiLimits,
    RequestRate,
    check_new_batch,
    free_bytes,
)
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.store.ids import ListedFile
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchRecord
from airflow_provider_raybatch.batch_api.store.store import BatchStore, new_nonce
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.batch_api import DAY, batch_record

HOUR = 3600.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(rate: RequestRate, user: str, most: int = 100) -> int:
    """Requests that are let through."""
    for number in range(most):
        try:
            rate.take(user)
        except OpenAiError:
            return number
    return most


def test_a_user_who_asks_too_often_is_told_when_to_come_back() -> None:
    clock = Clock()
    rate = RequestRate(30, clock)
    assert taken(rate, "ann") == 30
    with pytest.raises(OpenAiError, match="more than 30 requests in a minute; wait 2 s") as refusal:
        rate.take("ann")
    assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "2"})
    assert refusal.value.body["error"]["type"] == "rate_limit_error"
    clock.now += 2
    assert taken(rate, "ann") == 1


def test_refused_requests_do_not_keep_a_bucket_empty() -> None:
    clock = Clock()
    rate = RequestRate(60, clock)
    assert taken(rate, "ann") == 60
    for _ in range(20):
        clock.now += 0.1
        taken(rate, "ann", 1)
    clock.now += 10
    assert taken(rate, "ann") >= 10


def test_users_do_not_share_a_bucket() -> None:
    rate = RequestRate(3, Clock())
    assert taken(rate, "ann") == taken(rate, "bob") == 3
    assert taken(RequestRate(None), "ann", 500) == 500


def test_old_buckets_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_USERS", 2)
    rate = RequestRate(1, Clock())
    for user in ("ann", "bob", "eve"):
        rate.take(user)
    assert taken(rate, "eve") == 0
    assert taken(rate, "ann") == 1


def test_expired_files_leave_room() -> None:
    files = [
        ListedFile("file-1", 1.0, 200, 30, "batch"),
        ListedFile("file-2", 1.0, 100, 50, "batch_output"),
    ]
    assert free_bytes(files, ApiLimits(max_user_bytes=100), now=99.0) == 20
    assert free_bytes(files, ApiLimits(max_user_bytes=100), now=100.0) == 70
    assert free_bytes(files, ApiLimits(max_user_bytes=None), now=0.0) is None


@pytest.fixture
def store(disk: LocalFolder) -> BatchStore:
    return BatchStore(disk, b"a secret of the tests, long enough")


def add(store: BatchStore, age: float, owner: str = "ann") -> BatchRecord:
    return store.add_batch(batch_record(time.time() - age, owner=owner))


def end(store: BatchStore, batch: BatchRecord) -> None:
    store.end(batch.id, BatchEnd(decision="completed", decided_at=1.0, at=2.0, nonce=new_nonce()))


def test_batches_of_the_last_hour_are_counted(store: BatchStore) -> None:
    limits = ApiLimits(batches_per_hour=2, unfinished_batches=None)
    add(store, age=HOUR + 5)
    add(store, age=HOUR - 600)
    add(store, age=1, owner="bob")
    check_new_batch(store, "ann", limits)
    add(store, age=1)
    with pytest.raises(OpenAiError, match="2 batches within an hour") as refusal:
        check_new_batch(store, "ann", limits)
    assert refusal.value.status == 429
    assert 590 <= int(refusal.value.headers["Retry-After"]) <= 601


def test_few_of_many_batches_are_looked_at(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a user with ten thousand would wait for ten thousand states at each create."""
    for age in range(9):
        end(store, add(store, age=age))
    looked, state = [], BatchStore.state

    def noted(self: BatchStore, batch_id: str) -> Any:
        looked.append(batch_id)
        return state(self, batch_id)

    monkeypatch.setattr(BatchStore, "state", noted)
    limits = ApiLimits(batches_per_hour=None, unfinished_batches=2)
    check_new_batch(store, "ann", limits)
    assert 3 <= len(looked) <= 4
    for batch in store.batches("ann"):
        store.state(batch.id)
    looked.clear()
    add(store, age=0)
    check_new_batch(store, "ann", limits)
    assert looked == []  # one that may be open is fewer than two


def test_batches_that_have_not_ended_are_counted(store: BatchStore) -> None:
    limits = ApiLimits(batches_per_hour=None, unfinished_batches=2)
    first, _ = add(store, age=3 * DAY), add(store, age=2 * DAY)
    add(store, age=40 * DAY)  # its Airflow never ended it
    with pytest.raises(OpenAiError, match="2 batches that have not ended") as refusal:
        check_new_batch(store, "ann", limits)
    assert refusal.value.status == 429
    end(store, first)
    check_new_batch(store, "ann", limits)
    check_new_batch(store, "ann", ApiLimits(batches_per_hour=None, unfinished_batches=None))
