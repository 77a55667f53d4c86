# SPDX-License-Identifier: Apache-2.0
"""``ServedBatchOperator`` with a fake cluster, and the documents of a batch on a disk."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raybatch.batch_api.store.ending import PUBLISHING, dataset_of
from airflow_provider_raybatch.batch_api.store.records import BatchRecord, Started
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.batch_api.store.validation import LONGEST_SERVED_LINE
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchOutcome, Decision
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.exceptions import RayBatchException
from tests.support.airflow_tasks import Clock
from tests.support.approved import AssertSentences
from tests.support.batch_api import (
    DAY,
    MODEL,
    answering,
    content_of,
    created,
    ended_of,
    line,
    published,
    state_of,
)
from tests.support.batches import failing, spec_of_job
from tests.support.fake_ray import FakeRay
from tests.support.served_operator import ServedRun, begun, decide, operator


def test_a_batch_is_answered_and_ended(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    ray.script = answering(store, record)

    result = operator().execute(ServedRun(record).context())

    state = state_of(store, record)
    assert state.status == "completed"
    assert state.ended is not None
    file = store.file(str(state.ended.output_file_id))
    assert file is not None
    assert len(content_of(store.root, file).splitlines()) == 2
    assert state.started is not None
    assert state.started.total == 3
    assert (result["batch_id"], result["status"]) == (record.id, "completed")
    assert (result["total"], result["completed"], result["failed"]) == (3, 2, 1)


def test_the_job_reads_the_input_and_writes_beside_the_record(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    ray.script = answering(store, record)

    own = {"output_options": '{"rows_per_part": 5}', "advanced": {"num_cpus": 0.5}}
    operator(reuse="/kept/responses", **own).execute(ServedRun(record).context())

    spec, root = spec_of_job(ray), store.root.uri
    assert spec["source"] == [f"{root}/{record.input[0].path}"]
    assert spec["destination"] == f"{root}/{dataset_of(record.id)}"
    assert (spec["format"], spec["destination_format"]) == ("openai_batch", "openai_batch")
    assert (spec["rows_per_part"], spec["num_cpus"]) == (5, 0.5)
    assert (spec["served_model_name"], spec["report_samples"], spec["reuse"]) == (MODEL, 0, "/kept/responses")
    assert spec["served_batch"] == {"folder": f"{root}/batches/{record.id}", "expires_at": record.expires_at}


def test_a_deferred_batch_ends_in_the_task_that_comes_back(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    run = ServedRun(record)
    from tests.support.fake_ray import lasting

    ray.script = lasting(600)
    with pytest.raises(TaskDeferred):
        operator(deferrable=True).execute(run.context())
    assert state_of(store, record).status == "in_progress"
    (job,) = ray.jobs.values()
    job.script = answering(store, record)(ray, job.body)

    resumed = operator(deferrable=True)
    result = resumed.resume_execution("__fail__", {"error": "the trigger died"}, run.context())

    assert result["status"] == state_of(store, record).status == "completed"
    assert resumed.destination == f"{store.root.uri}/{dataset_of(record.id)}"


def test_results_and_logs_have_no_content(
    ray: FakeRay, store: BatchStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    content = json.dumps(line(1, secret="prompt-of-ann")).encode()
    record = created(store, content)
    ray.script = answering(store, record, answers=1, failures=0)

    result = operator().execute(ServedRun(record).context())

    assert "prompt-of-ann" not in json.dumps(result)
    assert "prompt-of-ann" not in caplog.text


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{not json\n", "invalid_json_line"),
        (b"", "empty_file"),
        (json.dumps(line(1, model="other")).encode(), "model_mismatch"),
        (2 * (json.dumps(line(1)).encode() + b"\n"), "duplicate_custom_id"),
    ],
)
def test_a_batch_of_an_invalid_file_fails_without_a_job(
    ray: FakeRay, store: BatchStore, content: bytes, code: str
) -> None:
    """The task succeeds: its administrator has nothing to repair."""
    record = created(store, content)

    result = operator().execute(ServedRun(record).context())

    ended = ended_of(store, record)
    assert (ended.decision, ended.errors[0].code, result["status"]) == ("failed", code, "failed")
    assert not ray.jobs
    assert state_of(store, record).started is None


def test_limits_of_the_model_count(ray: FakeRay, store: BatchStore) -> None:
    record, other = created(store, rows=3), created(store, rows=3)

    operator(max_requests=2).execute(ServedRun(record).context())
    operator(max_file_bytes=100).execute(ServedRun(other).context())

    codes = [state_of(store, one).ended.errors[0].code for one in (record, other)]  # type: ignore[union-attr]
    assert codes == ["too_many_tasks", "file_too_large"]


def test_a_batch_has_the_limits_of_its_server(ray: FakeRay, store: BatchStore) -> None:
    """Of the one that took it, whatever this worker's configuration says."""
    record = created(store, rows=50_001, strict=True)

    operator().execute(ServedRun(record).context())

    ended = ended_of(store, record)
    assert [error.code for error in ended.errors] == ["too_many_tasks"]
    assert not ray.jobs


def test_a_deleted_input_fails_the_batch(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    store.root.delete([record.input[0].path])

    operator().execute(ServedRun(record).context())

    ended = ended_of(store, record)
    assert ended.errors[0].code == "file_not_found"
    assert not ray.jobs


@pytest.mark.parametrize("decision", ["cancelled", "expired", "failed", None])
def test_a_batch_that_is_over_in_the_queue_ends_without_a_job(
    ray: FakeRay, store: BatchStore, decision: Decision | None
) -> None:
    """Its end is decided, or its window has passed."""
    record = created(store, window=DAY if decision else -1)
    if decision:
        decide(store, record, decision)

    result = operator().execute(ServedRun(record).context())

    assert result["status"] == state_of(store, record).status == (decision or "expired")
    assert not ray.jobs


@pytest.mark.parametrize("decision", ["cancelled", "expired", "completed"])
def test_what_a_started_batch_has_finished_is_published(
    ray: FakeRay, store: BatchStore, decision: Decision
) -> None:
    """Its job sees the decision, asks nothing more, and publishes."""
    record = created(store, window=-1)
    begun(store, record)
    decide(store, record, decision)
    ray.script = answering(store, record)

    result = operator().execute(ServedRun(record).context())

    assert result["status"] == state_of(store, record).status == decision
    assert len(ray.jobs) == 1


def test_a_batch_cancelled_while_checked_asks_nothing(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = created(store)
    start = BatchStore.start

    def cancelled(self: BatchStore, batch_id: str, started: Started) -> Started:
        decide(store, record, "cancelled")
        return start(self, batch_id, started)

    monkeypatch.setattr(BatchStore, "start", cancelled)

    result = operator().execute(ServedRun(record).context())

    assert (result["status"], result["total"]) == ("cancelled", 3)
    assert not ray.jobs


def test_a_batch_that_has_ended_is_left_alone(ray: FakeRay, store: BatchStore) -> None:
    """As after a clear of its run."""
    record, run = created(store), None
    ray.script = answering(store, record)
    run = ServedRun(record)
    operator().execute(run.context())
    before = state_of(store, record).ended
    run.clear()

    result = operator().execute(run.context())

    assert result == {
        "batch_id": record.id, "status": "completed", "total": 3, "completed": 2, "failed": 1,
    }  # fmt: skip
    assert state_of(store, record).ended == before
    assert len(ray.jobs) == 1


def test_the_input_of_a_started_batch_is_not_read_again(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    store.root.write(record.input[0].path, b"{broken")
    ray.script = answering(store, record)

    assert operator().execute(ServedRun(record).context())["status"] == "completed"


def published_and_lost(store: BatchStore, record: BatchRecord) -> Any:
    """What a cluster does that publishes, and is lost then."""

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        answering(store, record)(ray, body)
        return failing(FailureClass.NODE_LOST)(ray, body)

    return script


@pytest.mark.parametrize("is_last", [False, True])
def test_a_published_batch_survives_its_cluster(ray: FakeRay, store: BatchStore, is_last: bool) -> None:
    record = created(store)
    run = ServedRun(record)
    run.try_number = run.max_tries + 1 if is_last else 1
    ray.script = published_and_lost(store, record)

    result = operator().execute(run.context())

    assert (result["status"], result["completed"], result["failed"]) == ("completed", 2, 1)
    assert state_of(store, record).status == "completed"


def test_a_published_batch_is_not_answered_again_after_a_clear(ray: FakeRay, store: BatchStore) -> None:
    """Its worker died before it ended the batch, and a second dataset would replace files of the first."""
    record = created(store)
    begun(store, record)
    decide(store, record, "completed")
    published(store, record, {"part-00000.jsonl": 3})
    run = ServedRun(record)
    run.clear()

    result = operator().execute(run.context())

    assert (result["status"], result["completed"]) == ("completed", 3)
    assert not ray.jobs


def test_a_job_that_may_still_publish_is_left_to_the_server(
    ray: FakeRay, store: BatchStore, clock: Clock
) -> None:
    record = created(store)
    run = ServedRun(record)
    run.try_number = run.max_tries + 1

    def publishes_later(ray: FakeRay, body: dict[str, Any]) -> Any:
        outcome = BatchOutcome(decision="completed", at=time.time(), nonce="job")
        store.decide(record.id, outcome)
        return failing(FailureClass.CLUSTER_UNREACHABLE)(ray, body)

    ray.script = publishes_later
    with pytest.raises(RayBatchException):
        operator().execute(run.context())
    assert state_of(store, record).status == "finalizing"

    clock.forward(PUBLISHING)
    run.try_number += 1
    with pytest.raises(RayBatchException):
        operator().execute(run.context())
    assert state_of(store, record).status == "failed"


@pytest.mark.parametrize("decision", ["cancelled", "expired"])
def test_a_started_batch_that_no_job_has_begun_ends_without_one(
    ray: FakeRay, store: BatchStore, decision: Decision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster was away all the time, and need not come back."""
    record = created(store, window=-1)
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    if decision == "cancelled":
        decide(store, record, decision)
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", "")

    result = operator().execute(ServedRun(record).context())

    assert (result["status"], result["total"]) == (decision, 3)
    assert state_of(store, record).status == decision


def test_a_line_has_16_mib_unless_the_model_says_more(ray: FakeRay, store: BatchStore) -> None:
    content = json.dumps(line(1, user="x" * LONGEST_SERVED_LINE)).encode()
    record, other = created(store, content), created(store, content)
    ray.script = answering(store, other)

    operator().execute(ServedRun(record).context())
    operator(max_line_bytes=2 * LONGEST_SERVED_LINE).execute(ServedRun(other).context())

    ended = ended_of(store, record)
    assert ended.errors[0].message == "This line has more than 16,777,216 bytes; shorten it."
    assert state_of(store, other).status == "completed"


def test_a_mistake_of_the_model_is_found_at_parse(assert_sentences: AssertSentences) -> None:
    assert_sentences(operator, SpecError)
