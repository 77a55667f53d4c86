# SPDX-License-Identifier: Apache-2.0
"""The sensor waits for a job of another owner and never stops it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
)
from airflow_provider_raybatch.sensors.ray_job import RayJobSensor
from tests.support.airflow_tasks import Run, connection
from tests.support.fake_ray import FakeRay, Script

JOB = "somebody-elses"


def submit(ray: FakeRay, script: Script) -> None:
    ray.script = lambda ray, body: script
    ray.submit(submission_id=JOB)


def sensor(**arguments: Any) -> RayJobSensor:
    defaults: dict[str, Any] = {"task_id": "t", "submission_id": JOB, "poke_interval": 0.05, "timeout": 120}
    return RayJobSensor(**{**defaults, **arguments})


def test_waits_for_success(ray: FakeRay, run: Run) -> None:
    submit(ray, Script(seconds=600))
    polled = f"/api/jobs/{JOB}"
    ray.stage("GET", polled, lambda answer: (answer(), ray.jobs[JOB].end("SUCCEEDED"))[0])
    url = f"{ray.url}/#/jobs/{JOB}"
    assert sensor().execute(run.context()) == {
        "submission_id": JOB, "status": "SUCCEEDED", "dashboard_url": url,
    }  # fmt: skip
    assert run.xcoms == {"_link_RayDashboardLink": url}
    assert ray.count("GET", polled) >= 2


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize(
    ("soft", "kind", "message"),
    [(False, RayBatchFailException, "somebody-elses failed: .*boom"), (True, AirflowSkipException, ".")],
)
def test_fails_for_good_or_skips_when_the_job_failed(
    ray: FakeRay, run: Run, deferrable: bool, soft: bool, kind: Any, message: str
) -> None:
    submit(ray, Script(status="FAILED", message="boom"))
    with pytest.raises(kind, match=message):
        sensor(deferrable=deferrable, soft_fail=soft).execute(run.context())


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_finished_job_whose_log_is_out_of_reach(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, deferrable: bool
) -> None:
    monkeypatch.setattr(RetryPolicy, "wait", lambda policy, attempt: 0.0)
    submit(ray, Script())
    answer = ray.answer

    def without_logs(method: str, path: str, *rest: Any) -> Any:
        return (500, "the node is gone") if "/logs" in path else answer(method, path, *rest)

    monkeypatch.setattr(ray, "answer", without_logs)
    assert sensor(deferrable=deferrable).execute(run.context())["status"] == "SUCCEEDED"


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_unknown_job(ray: FakeRay, run: Run, deferrable: bool) -> None:
    with pytest.raises(RayBatchFailException, match="knows no job 'somebody-elses'"):
        sensor(deferrable=deferrable).execute(run.context())


def test_invalid_submission_id_is_refused(ray: FakeRay, run: Run) -> None:
    with pytest.raises(RayBatchFailException, match="submission_id: '' names no job"):
        sensor(submission_id="").execute(run.context())


def test_leaves_the_job_alone_when_it_gives_up(ray: FakeRay, run: Run) -> None:
    submit(ray, Script(seconds=60))
    with pytest.raises(AirflowSensorTimeout):
        sensor(timeout=0.3).execute(run.context())
    assert ray.active


def test_tolerates_an_unreachable_cluster(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RetryPolicy, "wait", lambda policy, attempt: 0.0)
    submit(ray, Script(seconds=60))
    ray.down = True
    with pytest.raises(AirflowSensorTimeout):
        sensor(timeout=0.2).execute(run.context())
    assert "Asking again later" in capsys.readouterr().out


def without_a_backend(*asked: Any) -> Any:
    return 404, "default backend"


def test_proxy_without_its_backend_for_a_while_is_tolerated(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(ray, Script(seconds=60))
    waiting = sensor()
    assert not waiting.poke(run.context()).is_done
    with monkeypatch.context() as patched:
        patched.setattr(ray, "answer", without_a_backend)
        assert not waiting.poke(run.context()).is_done
    ray.jobs[JOB].script.seconds = 0
    assert waiting.poke(run.context()).is_done


def test_new_process_tolerates_it_too_after_a_reschedule(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "answer", without_a_backend)
    context = run.context()
    context["ti"].get_first_reschedule_date = lambda context: datetime.now(UTC)
    assert not sensor(mode="reschedule").poke(context).is_done


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("deferrable", [True, False])
def test_each_attempt_ends_at_an_address_that_was_never_right(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, deferrable: bool, attempt: int
) -> None:
    monkeypatch.setattr(ray, "answer", without_a_backend)
    run.try_number = attempt
    with pytest.raises(RayBatchUnavailableException, match="correct the url"):
        sensor(deferrable=deferrable).execute(run.context())


def test_defers_without_the_right_to_stop(ray: FakeRay, run: Run) -> None:
    submit(ray, Script(seconds=60))
    with pytest.raises(TaskDeferred) as deferred:
        sensor(deferrable=True).execute(run.context())
    _, arguments = deferred.value.trigger.serialize()
    assert (arguments["cancel_on_kill"], arguments["cancel_on_timeout"]) == (False, False)
    assert arguments["session_name"] == ray.session_name


def test_a_cluster_that_stays_silent_is_worth_a_retry(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection("http://127.0.0.1:9"))
    outcome = Outcome("unreachable", FailureClass.CLUSTER_UNREACHABLE, "No answer.")
    with pytest.raises(RayBatchException) as caught:
        sensor().execute_complete(run.context(), {"outcome": outcome.to_json()})
    assert not isinstance(caught.value, AirflowFailException)
