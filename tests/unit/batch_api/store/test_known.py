# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from airflow_provider_raybatch.batch_api.store.store import KnownDocuments


def test_the_documents_that_were_used_last_are_kept() -> None:
    known = KnownDocuments(most=2)
    for path in ("a", "b"):
        known.keep(path, path)
    assert known.get("a") == "a"
    known.keep("c", "c")
    assert [known.get(path) for path in ("a", "b", "c")] == ["a", None, "c"]


def test_large_documents_push_out_others() -> None:
    """A user may make thousands of batches whose errors take 50 KiB each."""
    known = KnownDocuments(most_bytes=100)
    for number in range(5):
        known.keep("again", number, 90)
    assert known.get("again") == 4
    known.keep("small", 1, 10)
    known.keep("large", 2, 50)
    assert [known.get(path) for path in ("again", "small", "large")] == [None, 1, 2]
    known.keep("too large", 3, 101)
    assert known.get("too large") is None
    assert known.keep("later", 4, 100) == known.get("later")
