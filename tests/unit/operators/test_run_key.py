# SPDX-License-Identifier: Apache-2.0
"""The run key in the task state store, which users read and write by REST, is sealed by the seal key."""

from __future__ import annotations

import io
import json
import re
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.api_fastapi.core_api.datamodels.task_state_store import TaskStateStoreResponse
from airflow.sdk.exceptions import TaskDeferred
from cryptography.fernet import Fernet

from airflow_provider_raybatch.contract.submission import key_of_job
from airflow_provider_raybatch.exceptions import RayBatchFailException, RayConnectionError
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from airflow_provider_raybatch.operators.run_record import KEY
from tests.support.airflow_tasks import Run, connection
from tests.support.batches import Died, batch, die, die_before, job_ids
from tests.support.fake_ray import FakeRay, lasting

SEAL_KEY = Fernet.generate_key().decode()


def use(monkeypatch: pytest.MonkeyPatch, ray: FakeRay, seal_key: str | None) -> None:
    extra = {"extra": json.dumps({"secret_seal_key": seal_key})} if seal_key else {}
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, **extra))


def submit(ray: FakeRay, run: Run) -> list[str]:
    """Let an attempt die while it follows its job."""
    ray.script = lasting(600)
    die_before("_follow", run)
    run.try_number += 1
    return job_ids(ray)


def keys_of_jobs(ray: FakeRay) -> list[str]:
    """Return the keys that travelled."""
    found = []
    for job in ray.jobs.values():
        name = ray.spec(job.body)["submission"]["secrets_package"]
        with zipfile.ZipFile(io.BytesIO(ray.packages[name])) as archive:
            found.append(archive.read("key").decode())
    return found


def shown(run: Run) -> str:
    """Return the record as Airflow's REST API shows it."""
    now = datetime.now(UTC)
    return TaskStateStoreResponse(
        key=KEY, value=run.store.values[KEY], updated_at=now, expires_at=None
    ).model_dump_json()


@pytest.mark.parametrize("sealed", [True, False])
def test_airflows_api_shows_no_run_key(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    use(monkeypatch, ray, SEAL_KEY if sealed else None)
    (job,) = submit(ray, run)
    readable = re.findall(r"\b[0-9a-f]{64}\b", shown(run))
    assert ([key_of_job(key, job) for key in readable] == keys_of_jobs(ray)) is not sealed
    assert not (sealed and readable)


def test_a_retry_adopts_the_job_with_the_sealed_key(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ray, SEAL_KEY)
    first = submit(ray, run)
    ray.at_poll(2, ray.end_jobs)
    assert batch().execute(run.context())["rows"] == 2
    assert job_ids(ray) == first


@pytest.mark.parametrize("change", ["another seal key", "no seal key any more", "a key put there by REST"])
def test_a_run_key_that_does_not_open_begins_a_new_run(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    """Its job can't be followed any more; it is stopped, and the new one goes on with its rows."""
    use(monkeypatch, ray, SEAL_KEY)
    (first,) = submit(ray, run)
    if change == "a key put there by REST":
        run.store.values[KEY]["key"] = "ab" * 32
    else:
        use(monkeypatch, ray, Fernet.generate_key().decode() if change == "another seal key" else None)
    ray.at_poll(2, ray.end_jobs)
    assert batch().execute(run.context())["rows"] == 2
    _, second = job_ids(ray)
    assert ray.jobs[first].stopped
    assert not ray.jobs[second].stopped
    assert "secret_seal_key does not open the run's key" in caplog.text


@pytest.mark.parametrize("deferred", [False, True])
def test_a_job_without_a_key_of_its_own_goes_on(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, deferred: bool
) -> None:
    """A command that runs for days listens to no orders, so another seal key costs it nothing."""

    def operator() -> RayJobOperator:
        return RayJobOperator(task_id="t", entrypoint="x", poll_interval=0.05, deferrable=deferred)

    use(monkeypatch, ray, None)
    ray.script = lasting(600)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RayJobOperator, "_follow", die)
        with pytest.raises(TaskDeferred if deferred else Died):
            operator().execute(run.context())
    (first,) = ray.jobs
    use(monkeypatch, ray, SEAL_KEY)
    if deferred:
        ray.end_jobs()
        result = operator().resume_execution("__fail__", {"error": "gone"}, run.context())
    else:
        run.try_number += 1
        ray.at_poll(2, ray.end_jobs)
        result = operator().execute(run.context())
    assert result["submission_id"] == first
    assert job_ids(ray) == [first]


def test_a_finished_run_is_returned_whatever_the_key(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ray, SEAL_KEY)
    result: Any = batch().execute(run.context())
    run.try_number += 1
    use(monkeypatch, ray, None)
    assert batch().execute(run.context()) == result
    with pytest.raises(RayConnectionError, match=r"secret_seal_key .* restore it, or clear the task"):
        batch(prompt="Another {row.x}").execute(run.context())
    assert len(ray.jobs) == 1


def test_an_invalid_seal_key_is_refused_before_submission(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, ray, "not a key")
    with pytest.raises(
        RayBatchFailException, match=r"^secret_seal_key: the connection's key is not a Fernet key"
    ):
        batch().execute(run.context())
    assert run.store.values == {}
    assert not ray.jobs
