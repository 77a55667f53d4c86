# SPDX-License-Identifier: Apache-2.0
"""Parts with answers that were found, which many rows may share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from airflow_provider_raybatch.job.parts.part import read_between
from airflow_provider_raybatch.job.reuse import cached_parts
from airflow_provider_raybatch.job.reuse.cached_parts import matched, write_parts
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.row_keys import request_keys
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.work import in_sequence, work
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support import attempts
from tests.support.attempts import GREEDY, Attempt
from tests.support.publishing import response


def test_a_long_answer_is_shared_in_parts_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part, the copies of one answer were more than Arrow can hold."""
    texts = ["a"] * 14 + ["b"]
    store = ResponseStore(LocalFolder(str(tmp_path / "store")), print)
    monkeypatch.setattr(cached_parts, "MOST_BYTES", 5000)
    monkeypatch.setattr(attempts, "response", lambda _: response("x" * 1000))
    Attempt(tmp_path / "one", texts, sampling=GREEDY).answer([0, 14]).store_in(store)
    second = Attempt(tmp_path / "two", texts, store, sampling=GREEDY)
    items = work(second.source, 16, np.zeros(15, np.bool_))
    (own,) = request_keys(second.job, items, 1, in_sequence)
    responses = StoredResponses(store)
    cached = matched(np.arange(15), own.keys, responses)
    written, lost = write_parts(second.job, second.source.chunks(16), cached, responses, "stored")
    assert not len(lost)
    assert max(part.rows for part in written) <= 5
    rows = [row for part in written for row in read_between(second.job.folder, part, 0, 100).to_pylist()]
    assert [row["ordinal"] for row in rows] == list(range(15))
    assert {row["output"]["response"] for row in rows} == {"x" * 1000}
