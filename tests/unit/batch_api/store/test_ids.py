# SPDX-License-Identifier: Apache-2.0
"""Keys of a user's index."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store.ids import (
    ListedFile,
    file_key,
    listed_batch,
    listed_file,
    new_batch_id,
    new_file_id,
    newest_first,
)
from airflow_provider_raybatch.batch_api.store.records import FileRecord


def record(**fields: Any) -> FileRecord:
    given = {
        "id": new_file_id(), "owner": "ann", "filename": "a.jsonl", "purpose": "batch_output", "bytes": 12,
        "created_at": 1_790_000_000.25, "expires_at": 1_790_003_600.9, "content": [], **fields,
    }  # fmt: skip
    return FileRecord(**given)


def test_a_key_tells_what_listings_need() -> None:
    file = record()
    found = listed_file(file_key(file))
    assert found == ListedFile(file.id, file.created_at, int(file.expires_at), 12, "batch_output")
    batch_id = new_batch_id()
    batch = listed_batch(newest_first(1_790_000_000.25, batch_id))
    assert batch == (batch_id, 1_790_000_000.25)


def test_later_files_come_first_in_the_order_of_keys() -> None:
    keys = [file_key(record(created_at=at)) for at in (1.0, 20.0, 3.0)]
    assert sorted(keys) == [keys[1], keys[2], keys[0]]


@pytest.mark.parametrize(
    "key", ["", "x", "../record.json", f"{'1' * 13}-{'file-' + '0' * 32}", "1-file-2.3.4"]
)
def test_other_names_are_not_keys(key: str) -> None:
    assert listed_file(key) is None
    assert listed_batch(key) is None
