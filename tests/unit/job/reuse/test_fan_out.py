# SPDX-License-Identifier: Apache-2.0
"""Rows with equal requests share an answer, even if earlier tries of that request failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.part import Origin, read_between
from airflow_provider_raybatch.job.request.key_array import Keys
from airflow_provider_raybatch.job.reuse.cached_parts import matched, matched_by_leader, write_parts
from airflow_provider_raybatch.job.reuse.earlier_parts import LedgerResponses
from airflow_provider_raybatch.job.reuse.hits import Responses
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses
from airflow_provider_raybatch.job.reuse.row_keys import request_keys
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.work import in_sequence, work
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support import attempts
from tests.support.attempts import GREEDY, Attempt
from tests.support.publishing import failure, response

pytestmark = pytest.mark.usefixtures("ranges")


def test_an_answer_counts_more_than_an_earlier_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Attempt(tmp_path, ["a", "a"], sampling=GREEDY)
    assert first.asked == [0]
    with monkeypatch.context() as patched:
        patched.setattr(attempts, "response", lambda text: failure())
        first.answer([0])
    second = Attempt(tmp_path, ["a", "a"], sampling=GREEDY, number=1)
    assert second.asked == [0]
    second.answer([0])
    ledger = parts.listed(second.job.folder.list(second.run_folder))
    assert [part.ok for part in ledger] == [0, 1]
    (shared,) = second.reuse_plan.fan_out(second.job, second.source, ledger)
    rows = pq.read_table(Path(second.job.folder.root, shared.path)).to_pylist()
    assert [(row["ordinal"], row["ok"]) for row in rows] == [(1, True)]


@pytest.mark.parametrize("origin", ["duplicate", "stored"])
def test_a_long_answer_is_shared_in_parts_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    """In one part, the copies of one answer were more than Arrow can hold."""
    texts = ["a"] * 14 + ["b"]
    store = ResponseStore(LocalFolder(str(tmp_path / "store")), print)
    first = Attempt(tmp_path / "one", texts, sampling=GREEDY)
    monkeypatch.setattr(attempts, "response", lambda _: response("x" * 1000))
    first.answer([0, 14]).store_in(store)
    if origin == "stored":
        second = Attempt(tmp_path / "two", texts, store, sampling=GREEDY)
        responses: Responses = StoredResponses(store)
        cached = matched(np.arange(15), _keys(second), responses)
    else:
        second = first
        responses = LedgerResponses(first.job.folder, parts.listed(first.job.folder.list(first.run_folder)))
        (followers,) = (some for some in first.reuse_plan.followers if len(some))
        cached = matched_by_leader(followers, responses)
    chunks = second.source.chunks(16)
    written, lost = write_parts(second.job, chunks, cached, responses, origin, most=5000)
    assert not len(lost)
    assert max(part.rows for part in written) <= 5
    tables = [read_between(second.job.folder, part, 0, 100) for part in written]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [row["ordinal"] for row in rows] == sorted(cached.ordinals.tolist())
    assert {row["output"]["response"] for row in rows} == {"x" * 1000}


def _keys(attempt: Attempt) -> Keys:
    work_of_all = work(attempt.source, 16, np.zeros(attempt.source.rows, np.bool_))
    (some,) = request_keys(attempt.job, work_of_all, 1, in_sequence)
    return some.keys
