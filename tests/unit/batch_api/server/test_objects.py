# SPDX-License-Identifier: Apache-2.0
"""Documents as clients get them, checked by the types of the official client."""

from __future__ import annotations

from typing import Any

import openai.types
import pytest

from airflow_provider_raybatch.batch_api.server.objects import (
    batch_object,
    deleted_file,
    file_object,
    listing,
    model_object,
)
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchState, FileRecord, Started, Usage
from airflow_provider_raybatch.contract.arguments.openai_batch import (
    BatchError,
    BatchOutcome,
    BatchProgress,
    RequestCounts,
)
from tests.support.batch_api import batch_record

NOW = 1_790_000_000.75
TIMES = (
    "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at",
)  # fmt: skip
RECORD = batch_record(NOW, metadata={"night": "1"})
STARTED = Started(at=NOW + 10, total=3, nonce="n")
COUNTS = RequestCounts(total=3, completed=2, failed=1)


def outcome(decision: Any, **fields: Any) -> BatchOutcome:
    return BatchOutcome(decision=decision, at=NOW + 20, nonce="n", **fields)


def end(decision: Any, **fields: Any) -> BatchEnd:
    given = {"decided_at": NOW + 20, "at": NOW + 30, "nonce": "n", "counts": COUNTS, **fields}
    return BatchEnd(decision=decision, **given)


def exact(model: Any, document: dict[str, Any]) -> dict[str, Any]:
    """The document, if it has all fields of the client's type, no others, and each of the right type."""
    assert set(document) == set(model.model_fields)
    model.model_validate(document, strict=True)
    return document


def shown(**fields: Any) -> dict[str, Any]:
    return exact(openai.types.Batch, batch_object(BatchState(RECORD, triggered=True, **fields)))


def times(document: dict[str, Any]) -> dict[str, int]:
    """Its times that are set, in seconds since its creation."""
    return {name: document[name] - int(NOW) for name in TIMES if document[name] is not None}


def test_a_file_is_processed_from_the_start() -> None:
    record = FileRecord(
        id="file-1", owner="ann", filename="a ü.jsonl", purpose="batch", bytes=7, created_at=NOW,
        expires_at=NOW + 3600.5, content=[],
    )  # fmt: skip
    assert exact(openai.types.FileObject, file_object(record)) == {
        "id": "file-1",
        "object": "file",
        "bytes": 7,
        "created_at": int(NOW),
        "expires_at": int(NOW) + 3601,
        "filename": "a ü.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }
    exact(openai.types.FileDeleted, deleted_file("file-1"))


def test_a_new_batch_has_no_counts_and_no_times() -> None:
    found = shown()
    assert found["status"] == "validating"
    assert found["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert times(found) == {}
    assert (found["created_at"], found["expires_at"]) == (int(NOW), int(NOW) + 86400)
    assert [found[name] for name in ("errors", "usage", "output_file_id", "error_file_id")] == [None] * 4
    assert found["metadata"] == {"night": "1"}


def test_a_batch_that_runs_shows_what_is_durable() -> None:
    assert shown(started=STARTED)["request_counts"]["total"] == 3
    progress = BatchProgress(at=NOW, counts=RequestCounts(total=3, completed=1))
    found = shown(started=STARTED, progress=progress)
    assert found["status"] == "in_progress"
    assert found["request_counts"] == {"total": 3, "completed": 1, "failed": 0}
    assert times(found) == {"in_progress_at": 10}


@pytest.mark.parametrize(
    ("decision", "between", "first", "last"),
    [
        ("completed", "finalizing", "finalizing_at", "completed_at"),
        ("expired", "finalizing", "finalizing_at", "expired_at"),
        ("cancelled", "cancelling", "cancelling_at", "cancelled_at"),
        ("limit_reached", "cancelling", "cancelling_at", "cancelled_at"),
    ],
)
def test_times_of_each_end(decision: str, between: str, first: str, last: str) -> None:
    decided = shown(started=STARTED, outcome=outcome(decision))
    assert decided["status"] == between
    assert times(decided) == {"in_progress_at": 10, first: 20}
    ended = shown(started=STARTED, outcome=outcome(decision), ended=end(decision))
    assert ended["status"] == last.removesuffix("_at")
    assert times(ended) == {"in_progress_at": 10, first: 20, last: 30}


def test_usage_and_files_of_an_ended_batch() -> None:
    usage = Usage(input_tokens=100, cached_tokens=40, output_tokens=20, reasoning_tokens=5)
    ended = end("completed", usage=usage, output_file_id="file-2", error_file_id="file-3")
    found = shown(started=STARTED, outcome=outcome("completed"), ended=ended)
    assert found["usage"] == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 40},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
    }
    assert (found["output_file_id"], found["error_file_id"]) == ("file-2", "file-3")
    assert found["request_counts"] == {"total": 3, "completed": 2, "failed": 1}


def test_a_failed_batch_has_errors_at_once() -> None:
    """Its time doesn't change when it is ended after it was decided."""
    errors = [BatchError(code="invalid_json_line", message="Not JSON.", line=2)]
    decided = shown(outcome=outcome("failed", errors=errors))
    ended = shown(outcome=outcome("failed", errors=errors), ended=end("failed", errors=errors))
    for found in (decided, ended):
        assert found["status"] == "failed"
        assert times(found) == {"failed_at": 20}
        assert found["errors"] == {
            "object": "list",
            "data": [{"code": "invalid_json_line", "message": "Not JSON.", "param": None, "line": 2}],
        }


def test_times_never_run_backwards_when_clocks_differ() -> None:
    slow = Started(at=NOW - 50, total=3, nonce="n")
    decided = BatchOutcome(decision="completed", at=NOW - 60, nonce="n")
    ended = end("completed", decided_at=NOW - 60, at=NOW - 70)
    found = shown(started=slow, outcome=decided, ended=ended)
    assert times(found) == {"in_progress_at": 0, "finalizing_at": 0, "completed_at": 0}


def test_a_list_names_its_ends() -> None:
    two = [model_object("a", 1.5), model_object("b", 2)]
    for one in two:
        openai.types.Model.model_validate(one, strict=True)
    found = listing(two, has_more=True)
    assert (found["first_id"], found["last_id"], found["has_more"]) == ("a", "b", True)
    assert listing([], has_more=False) == {
        "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
    }  # fmt: skip
