# SPDX-License-Identifier: Apache-2.0
"""``ServedBatchOperator`` with a fake cluster, and the documents of a batch on a disk."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_raybatch.batches.ending import PUBLISHING, dataset_of
from airflow_provider_raybatch.batches.store import BatchStore
from airflow_provider_raybatch.batches.validation import LONGEST_SERVED_LINE
from airflow_provider_raybatch.contract.batch_api.records import (
    BatchOutcome,
    BatchProgress,
    BatchRecord,
    Decision,
    RequestCounts,
    Started,
)
from airflow_provider_raybatch.contract.batch_api.signature import signed
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.exceptions import RayBatchException, RayBatchFailException
from airflow_provider_raybatch.operators.served_attempts import LEAST_SECONDS, MOST_IN_VAIN
from airflow_provider_raybatch.operators.served_batch import LATE, ServedBatchOperator
from airflow_provider_raybatch.retries import ray_batch_retry_policy
from tests.support.airflow_tasks import Clock, Run
from tests.support.batch_api import (
    MODEL,
    answering,
    configured,
    content_of,
    created,
    line,
    published,
    state_of,
)
from tests.support.batches import failing, spec_of_job
from tests.support.fake_ray import FakeRay

SECOND = "0123456789abcdef" * 2


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchStore:
    return configured(monkeypatch, tmp_path)


def operator(**arguments: Any) -> ServedBatchOperator:
    given: dict[str, Any] = {"task_id": "answer", "served_model_name": MODEL, "engine": "echo"}
    policy = ray_batch_retry_policy()
    return ServedBatchOperator(**{"poll_interval": 0.05, "retry_policy": policy, **given, **arguments})


class ServedRun(Run):
    """The DAG run of a batch."""

    def __init__(self, record: BatchRecord, **conf: Any) -> None:
        super().__init__(dag_id=record.dag_id, task_id="answer", run_id=record.id)
        self.conf: Any = {"batch_id": record.id, **conf}

    def context(self) -> Any:
        run = SimpleNamespace(run_id=self.ids["run_id"], conf=self.conf)
        return {**super().context(), "dag_run": run}


def begun(store: BatchStore, record: BatchRecord, answered: int | None = None) -> None:
    """Leave a batch as a job does that has died.

    :param answered: requests; ``None`` for a job that has claimed the destination alone.
    """
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    store.root.write(f"{dataset_of(record.id)}/_raybatch/journal/00000000.json", b"{}")
    if answered is not None:
        write_progress(store, record, answered)


def write_progress(store: BatchStore, record: BatchRecord, answered: int) -> None:
    progress = BatchProgress(at=time.time(), counts=RequestCounts(total=3, completed=answered))
    store.root.write(f"batches/{record.id}/progress.json", progress.model_dump_json().encode())


def decide(store: BatchStore, record: BatchRecord, decision: Decision) -> None:
    store.decide(record.id, BatchOutcome(decision=decision, at=5.0, nonce="n"))


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

    operator(reuse="/kept/responses").execute(ServedRun(record).context())

    spec, root = spec_of_job(ray), store.root.uri
    assert spec["source"] == [f"{root}/{record.input[0].path}"]
    assert spec["destination"] == f"{root}/{dataset_of(record.id)}"
    assert (spec["format"], spec["destination_format"]) == ("openai_batch", "openai_batch")
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

    ended = state_of(store, record).ended
    assert ended is not None
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

    ended = state_of(store, record).ended
    assert ended is not None
    assert [error.code for error in ended.errors] == ["too_many_tasks"]
    assert not ray.jobs


def test_a_deleted_input_fails_the_batch(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    store.root.delete([record.input[0].path])

    operator().execute(ServedRun(record).context())

    ended = state_of(store, record).ended
    assert ended is not None
    assert ended.errors[0].code == "file_not_found"
    assert not ray.jobs


@pytest.mark.parametrize("decision", ["cancelled", "expired", "failed"])
def test_a_batch_decided_before_its_start_ends_without_a_job(
    ray: FakeRay, store: BatchStore, decision: Decision
) -> None:
    record = created(store)
    decide(store, record, decision)

    result = operator().execute(ServedRun(record).context())

    assert result["status"] == state_of(store, record).status == decision
    assert not ray.jobs


def test_a_batch_whose_window_passed_in_the_queue_expires(ray: FakeRay, store: BatchStore) -> None:
    record = created(store, window=-1)

    result = operator().execute(ServedRun(record).context())

    assert result["status"] == state_of(store, record).status == "expired"
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


def forged(store: BatchStore, record: BatchRecord, content: bytes) -> None:
    path = f"batches/{record.id}/record.json"
    store.root.delete([path])
    store.root.write(path, content)


@pytest.mark.parametrize(
    ("conf", "sentence"),
    [
        (None, "conf: there is none"),
        ({}, r"conf: it has the keys \[\]"),
        ({"batch_id": "batch_" + SECOND, "model": "x"}, r"conf: it has the keys \['batch_id', 'model'\]"),
        ({"batch_id": 5}, "conf: batch_id 5 is not the id of a batch"),
        ({"batch_id": "../../files/file-1"}, "'../../files/file-1' is not the id of a batch"),
        ({"batch_id": "batch_" + SECOND}, f"conf: batch_id batch_{SECOND} is not the id of this run"),
    ],
)
def test_a_configuration_of_no_batch_of_this_run_is_refused(
    ray: FakeRay, store: BatchStore, conf: Any, sentence: str
) -> None:
    run = ServedRun(created(store))
    run.conf = conf

    with pytest.raises(RayBatchFailException, match=sentence):
        operator().execute(run.context())

    assert not ray.jobs


def test_a_batch_that_is_not_there_is_refused(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    forged(store, record, b"")
    store.root.delete([f"batches/{record.id}/record.json"])

    with pytest.raises(RayBatchFailException, match="there is no such batch below"):
        operator().execute(ServedRun(record).context())


def test_the_batch_of_another_run_can_not_be_named(ray: FakeRay, store: BatchStore) -> None:
    mine, other = created(store), created(store, owner="bob")
    run = ServedRun(mine)
    run.conf = {"batch_id": other.id}

    with pytest.raises(RayBatchFailException, match="is not the id of this run"):
        operator().execute(run.context())

    assert state_of(store, other).status == "validating"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"dag_id": "batches_large"}, "is a batch of DAG 'batches_large', not of 'batches_small'"),
        ({"model": "large"}, "is a batch of model 'large', and this DAG serves 'small'"),
    ],
)
def test_a_batch_of_another_dag_or_model_is_refused(
    ray: FakeRay, store: BatchStore, fields: dict[str, Any], sentence: str
) -> None:
    record = created(store, **fields)
    run = ServedRun(record)
    run.ids["dag_id"] = "batches_small"

    with pytest.raises(RayBatchFailException, match=sentence):
        operator().execute(run.context())

    assert not ray.jobs


def test_a_record_not_signed_by_this_airflow_is_refused(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    theirs = created(store, owner="bob")
    changed = record.model_copy(update={"owner": "bob"})
    documents = [
        changed.model_dump_json().encode(),
        signed(changed, f"batch {record.id}", b"another secret of forty characters or so"),
        store.root.read(f"batches/{theirs.id}/record.json"),
        json.dumps({
            "record": changed.model_dump_json(),
            "signature": json.loads(store.root.read(f"batches/{record.id}/record.json"))["signature"],
        }).encode(),
    ]
    for content in documents:
        forged(store, record, content)
        with pytest.raises(RayBatchFailException, match="is not signed with this Airflow's"):
            operator().execute(ServedRun(record).context())
    assert not ray.jobs


def test_a_worker_without_the_setting_says_so(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = created(store)
    monkeypatch.delenv("AIRFLOW__RAYBATCH__BATCH_API_ROOT")

    with pytest.raises(RayBatchFailException, match="batch_api_root: it is not set on this machine"):
        operator().execute(ServedRun(record).context())


def test_a_failure_with_a_retry_leaves_the_batch_running(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    run = ServedRun(record)
    ray.script = failing(FailureClass.NODE_LOST, "prompt-of-ann")
    with pytest.raises(RayBatchException):
        operator().execute(run.context())
    assert state_of(store, record).status == "in_progress"
    run.try_number += 1
    ray.script = answering(store, record)

    assert operator().execute(run.context())["status"] == "completed"


@pytest.mark.parametrize(
    ("failure_class", "last"), [(FailureClass.USER_ERROR, False), (FailureClass.NODE_LOST, True)]
)
def test_a_failure_for_good_fails_batch_and_task(
    ray: FakeRay, store: BatchStore, failure_class: FailureClass, last: bool
) -> None:
    record = created(store)
    run = ServedRun(record)
    run.try_number = run.max_tries + 1 if last else 1
    ray.script = failing(failure_class, "prompt-of-ann")

    with pytest.raises(RayBatchException):
        operator().execute(run.context())

    ended = state_of(store, record).ended
    assert ended is not None
    assert (ended.decision, ended.counts.total, ended.errors[0].code) == ("failed", 3, "server_error")
    assert ended.errors[0].message.endswith(f"its DAG run is {record.id} of {record.dag_id}.")
    assert "prompt-of-ann" not in ended.model_dump_json()


def test_a_day_after_the_window_no_attempt_follows(ray: FakeRay, store: BatchStore, clock: Clock) -> None:
    record = created(store, window=60)
    run = ServedRun(record)
    begun(store, record)
    ray.script = failing(FailureClass.NODE_LOST)
    clock.forward(120)
    with pytest.raises(RayBatchException) as first:
        operator().execute(run.context())
    assert not isinstance(first.value, RayBatchFailException)
    assert state_of(store, record).status == "finalizing"
    clock.forward(LATE)
    run.try_number += 1

    with pytest.raises(
        RayBatchFailException, match="No attempt follows, since its window ended more than a day ago"
    ):
        operator().execute(run.context())

    assert state_of(store, record).status == "expired"


def test_the_job_of_a_failed_batch_does_not_matter(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has given up on the batch, and its job ends itself."""
    record = created(store)

    def gives_up(ray: FakeRay, body: dict[str, Any]) -> Any:
        decide(store, record, "failed")
        return failing(FailureClass.CANCELLED)(ray, body)

    ray.script = gives_up

    assert operator().execute(ServedRun(record).context())["status"] == "failed"


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


def attempts(
    ray: FakeRay, store: BatchStore, record: BatchRecord, clock: Clock, script: Any, most: int = 20
) -> tuple[int, Exception | None]:
    """Run attempts until none follows; returns how many, and what the last one raised."""
    run, error = ServedRun(record), None
    run.max_tries = run.retries = 288
    ray.script = script
    for number in range(1, most + 1):
        run.try_number = number
        try:
            operator().execute(run.context())
        except RayBatchFailException as last:
            return number, last
        except RayBatchException as failure:
            error = failure
        clock.forward(200)
    return most, error


@pytest.mark.parametrize("failure_class", [FailureClass.ENGINE_DEAD, FailureClass.INTERNAL])
def test_a_batch_whose_jobs_only_fail_leaves_the_queue(
    ray: FakeRay, store: BatchStore, clock: Clock, failure_class: FailureClass
) -> None:
    record = created(store)

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        write_progress(store, record, 1)
        return failing(failure_class, "prompt-of-ann")(ray, body)

    number, error = attempts(ray, store, record, clock, script)

    assert number == MOST_IN_VAIN + 1  # the first one has answered a request
    assert "No attempt follows, since 5 attempts in a row answered no further request." in str(error)
    ended = state_of(store, record).ended
    assert ended is not None
    assert (ended.decision, ended.counts.completed) == ("failed", 1)
    assert ended.errors[0].message.startswith(
        "The batch could not be run, since 5 attempts in a row answered no further request; its DAG run"
    )


def test_a_batch_that_gets_on_is_tried_for_as_long_as_it_does(
    ray: FakeRay, store: BatchStore, clock: Clock
) -> None:
    record = created(store)
    tries = iter(range(100))

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        write_progress(store, record, next(tries) // 4)
        return failing(FailureClass.ENGINE_DEAD)(ray, body)

    attempts(ray, store, record, clock, script, 12)

    assert state_of(store, record).status == "in_progress"


@pytest.mark.parametrize("failure_class", [FailureClass.CLUSTER_UNREACHABLE, FailureClass.STALLED])
def test_a_batch_without_a_cluster_keeps_its_place(
    ray: FakeRay, store: BatchStore, clock: Clock, failure_class: FailureClass
) -> None:
    """As long as its jobs get no nodes, which others would not get either."""
    record = created(store)

    attempts(ray, store, record, clock, failing(failure_class), 12)

    assert state_of(store, record).status == "in_progress"


def test_attempts_in_vain_need_some_minutes(ray: FakeRay, store: BatchStore, clock: Clock) -> None:
    record = created(store)
    run = ServedRun(record)
    run.max_tries = 288
    ray.script = failing(FailureClass.ENGINE_DEAD)
    for number in range(1, 8):
        run.try_number = number
        with pytest.raises(RayBatchException) as caught:
            operator().execute(run.context())
        assert not isinstance(caught.value, RayBatchFailException)
    clock.forward(LEAST_SECONDS)
    run.try_number += 1

    with pytest.raises(RayBatchFailException, match="since 8 attempts in a row"):
        operator().execute(run.context())


def test_a_clear_counts_attempts_anew(ray: FakeRay, store: BatchStore, clock: Clock) -> None:
    record = created(store)
    run = ServedRun(record)
    run.max_tries = 288
    ray.script = failing(FailureClass.ENGINE_DEAD)
    for _ in range(2 * MOST_IN_VAIN - 2):
        with pytest.raises(RayBatchException):
            operator().execute(run.context())
        clock.forward(200)
        run.try_number += 1
        if run.try_number == MOST_IN_VAIN:
            run.max_tries += run.try_number

    assert state_of(store, record).status == "in_progress"


def test_a_store_that_is_away_ends_no_batch(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    run = ServedRun(record)

    def script(ray: FakeRay, body: dict[str, Any]) -> Any:
        run.store.broken = True
        return failing(FailureClass.ENGINE_DEAD)(ray, body)

    ray.script = script

    with pytest.raises(RayBatchException):
        operator().execute(run.context())

    assert state_of(store, record).status == "in_progress"


def test_a_line_has_16_mib_unless_the_model_says_more(ray: FakeRay, store: BatchStore) -> None:
    content = json.dumps(line(1, user="x" * LONGEST_SERVED_LINE)).encode()
    record, other = created(store, content), created(store, content)
    ray.script = answering(store, other)

    operator().execute(ServedRun(record).context())
    operator(max_line_bytes=2 * LONGEST_SERVED_LINE).execute(ServedRun(other).context())

    ended = state_of(store, record).ended
    assert ended is not None
    assert ended.errors[0].message == "This line has more than 16,777,216 bytes; shorten it."
    assert state_of(store, other).status == "completed"


class DyingError(Exception):
    pass


@pytest.mark.parametrize("most", range(7))
def test_the_next_attempt_goes_on_wherever_one_died(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    record = created(store)
    run = ServedRun(record)
    ray.script = answering(store, record)
    create, left = type(store.root).create, iter(range(most))

    def dying(folder: Any, path: str, content: bytes) -> None:
        if next(left, None) is None:
            raise DyingError
        create(folder, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(type(store.root), "create", dying)
        try:
            operator().execute(run.context())
        except (DyingError, RayBatchException):
            assert state_of(store, record).ended is None
    run.try_number += 1

    result = operator().execute(run.context())

    assert (result["status"], result["completed"], result["failed"]) == ("completed", 2, 1)
    assert state_of(store, record).status == "completed"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"engine": "vlm"}, "engine: .* did you mean 'vllm'"),
        ({"engine": "vllm"}, "model: a value is needed here"),
        ({"prompt": "Say {row.x}"}, "prompt: it has no effect with format 'openai_batch'"),
        ({"replicas": 0}, "replicas: "),
        ({"gpu_hour_price": -1}, "gpu_hour_price"),
        ({"orphan_timeout": 10, "poll_interval": 60}, "orphan_timeout: 10 s is less than 3 times"),
    ],
)
def test_a_mistake_of_the_model_is_found_at_parse(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        operator(**arguments)
