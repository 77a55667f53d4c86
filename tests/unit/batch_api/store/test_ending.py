# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from airflow_provider_raybatch.batch_api.store.ending import end_of, end_without_job, manifest_of
from airflow_provider_raybatch.batch_api.store.records import Started
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchError, BatchOutcome, Decision
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.run_numbers import EarlyEnd
from tests.support.batch_api import (
    MADE_AT,
    DyingError,
    content_of,
    created,
    dying,
    files_of,
    published,
    state_of,
    store_at,
)


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return store_at(tmp_path)


def _decide(store: BatchStore, batch_id: str, decision: Decision) -> None:
    store.decide(batch_id, BatchOutcome(decision=decision, at=5.0, nonce="n"))


def test_output_is_the_parts_of_the_dataset(store: BatchStore) -> None:
    record = created(store)
    manifest = published(store, record, {"part-00000.jsonl": 2, "part-00001.jsonl": 1})

    end = end_of(store, state_of(store, record), manifest)

    file = store.file(str(end.output_file_id))
    assert file is not None
    assert (file.owner, file.purpose, file.batch_id) == ("ann", "batch_output", record.id)
    assert file.filename == f"{record.id}_output.jsonl"
    assert content_of(store.root, file).count(b"\n") == 3
    assert file.bytes == len(content_of(store.root, file))
    assert (file.created_at, file.expires_at) == (MADE_AT, MADE_AT + record.outputs_expire_after)
    assert end.error_file_id is None
    assert (end.decision, end.counts.total, end.counts.completed, end.counts.failed) == ("completed", 3, 3, 0)
    assert files_of(store) == [record.input_file_id, file.id]
    assert state_of(store, record).status == "completed"


def test_a_batch_whose_requests_all_failed_has_no_output(store: BatchStore) -> None:
    record = created(store)
    manifest = published(
        store, record, {"part-00000.jsonl": 0}, {"part-00000.jsonl": 2, "part-00001.jsonl": 1}
    )

    end = end_of(store, state_of(store, record), manifest)

    assert end.output_file_id is None
    file = store.file(str(end.error_file_id))
    assert file is not None
    assert [piece.path.rpartition("/")[2] for piece in file.content] == [
        "part-00000.jsonl",
        "part-00001.jsonl",
    ]
    assert file.filename == f"{record.id}_error.jsonl"
    assert (end.counts.completed, end.counts.failed) == (0, 3)


@pytest.mark.parametrize("decision", get_args(EarlyEnd))
def test_rows_that_were_never_asked_count_as_neither(store: BatchStore, decision: EarlyEnd) -> None:
    record = created(store, rows=6)
    _decide(store, record.id, decision)
    counts = {"input": 6, "ok": 2, "error": 4, "errors_by_step": {"engine": 1, decision: 3}}
    manifest = published(store, record, {"a.jsonl": 2}, {"a.jsonl": 4}, counts=counts)

    end = end_of(store, state_of(store, record), manifest)

    assert (end.decision, end.decided_at) == (decision, 5.0)
    assert (end.counts.total, end.counts.completed, end.counts.failed) == (6, 2, 1)


def test_usage_and_cost_are_the_manifests(store: BatchStore) -> None:
    record = created(store)
    tokens = {"input": 30, "cached": 10, "output": 7, "reasoning": 4}
    manifest = published(store, record, {"a.jsonl": 3}, tokens=tokens, cost=1.25, currency="EUR")

    end = end_of(store, state_of(store, record), manifest)

    usage = end.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens) == (
        30,
        10,
        7,
        4,
    )
    assert (end.cost, end.currency) == (1.25, "EUR")


def test_several_writers_make_one_end(store: BatchStore) -> None:
    record = created(store)
    manifest = published(store, record, {"a.jsonl": 2}, {"a.jsonl": 1})
    before = state_of(store, record)

    ends = [end_of(store, before, manifest) for _ in range(3)]

    assert ends[0] == ends[1] == ends[2] == state_of(store, record).ended
    assert len(files_of(store)) == 3  # the input, the output and the errors


@pytest.mark.parametrize("most", range(6))
def test_another_process_goes_on_where_one_died(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    record = created(store)
    manifest = published(store, record, {"a.jsonl": 2}, {"a.jsonl": 1})
    before = state_of(store, record)
    with monkeypatch.context() as patched:
        dying(patched, store, most)
        with pytest.raises(DyingError):
            end_of(store, before, manifest)
    assert state_of(store, record).ended is None

    end = end_of(store, state_of(store, record), manifest)

    assert end.output_file_id
    assert end.error_file_id
    assert len(files_of(store)) == 3


@pytest.mark.parametrize("name", ["../../../files/file-1/content.jsonl", "/etc/passwd", "a/../../b"])
def test_a_manifest_can_not_name_files_of_others(store: BatchStore, name: str) -> None:
    record = created(store)
    published(store, record, {"a.jsonl": 1})
    files = [{"path": name, "rows": 1, "bytes": 10}]
    manifest = published(store, record, {}, files=files, counts={"input": 1, "ok": 1, "error": 0})

    with pytest.raises(RaybatchError, match="is not a file of its dataset"):
        end_of(store, state_of(store, record), manifest)

    assert state_of(store, record).ended is None


def test_a_manifest_can_not_name_a_folder_of_others(store: BatchStore) -> None:
    record = created(store)
    manifest = published(store, record, {}, {"a.jsonl": 1}, errors_uri="s3://other/errors/..")

    with pytest.raises(RaybatchError, match="is not a file of its dataset"):
        end_of(store, state_of(store, record), manifest)


def test_a_batch_without_a_job_ends_with_its_errors(store: BatchStore) -> None:
    record = created(store)
    errors = [BatchError(code="invalid_json_line", message="no", line=2)]

    end = end_without_job(store, state_of(store, record), "failed", errors)

    assert (end.decision, end.errors, end.counts.total) == ("failed", errors, 0)
    assert end.output_file_id is None
    assert state_of(store, record).status == "failed"


@pytest.mark.parametrize("decision", get_args(EarlyEnd))
def test_a_decision_that_came_first_counts(store: BatchStore, decision: EarlyEnd) -> None:
    record = created(store)
    before = state_of(store, record)
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    why = [BatchError(code="limit_reached", message="max_cost: spent")] if decision == "limit_reached" else []
    store.decide(record.id, BatchOutcome(decision=decision, at=5.0, nonce="n", errors=why))

    end = end_without_job(store, before, "failed", [BatchError(code="x", message="x")])

    assert (end.decision, end.errors) == (decision, why)


def test_a_completed_batch_that_can_not_be_published_fails(store: BatchStore) -> None:
    record = created(store)
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    _decide(store, record.id, "completed")
    errors = [BatchError(code="server_error", message="the run failed")]

    end = end_without_job(store, state_of(store, record), "failed", errors)

    assert (end.decision, end.errors, end.counts.total, end.counts.completed) == ("failed", errors, 3, 0)


def test_the_manifest_is_read_once_it_is_there(store: BatchStore) -> None:
    record = created(store)
    assert manifest_of(store, record.id) is None

    manifest = published(store, record, {"a.jsonl": 1})

    assert manifest_of(store, record.id) == manifest


def test_a_manifest_without_a_time_is_refused(store: BatchStore) -> None:
    record = created(store)
    manifest = published(store, record, {"part-00000.jsonl": 3}, created_at="yesterday")
    with pytest.raises(RaybatchError, match="its manifest has created_at 'yesterday', which is not a time"):
        end_of(store, state_of(store, record), manifest)
    assert state_of(store, record).ended is None
