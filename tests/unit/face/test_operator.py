# SPDX-License-Identifier: Apache-2.0
"""One submission whatever dies: attempts of one task against a fake Jobs API, without a scheduler."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_raybatch.contract.events import Failed, line
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
    airflow_exception,
)
from airflow_provider_raybatch.links.ray_dashboard import RayDashboardLink
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator

from .conftest import Run, connection
from .fake_ray import FakeRay, Script, committing, lasting


def batch(**arguments: Any) -> RayBatchInferenceOperator:
    defaults: dict[str, Any] = {
        "task_id": "t", "source": "/in", "prompt": "Say {row.x}", "model": "m",
        "destination": "s3://lake/out/", "poll_interval": 0.05,
    }  # fmt: skip
    return RayBatchInferenceOperator(**{**defaults, **arguments})


def failing(failure_class: FailureClass, message: str = "It went wrong.") -> Any:
    return lambda ray, body: Script(
        last=[line(Failed(failure_class=failure_class, message=message))], status="FAILED"
    )


def job_ids(ray: FakeRay) -> list[str]:
    return list(ray.jobs)


class Died(BaseException):
    """Stands for the end of a worker process."""


class TestResult:
    def test_is_small_and_complete(self, ray: FakeRay, run: Run) -> None:
        result = batch().execute(run.context())
        (submission_id,) = ray.jobs
        assert result == {
            "uri": "s3://lake/out/data/c1",
            "bucket": "lake",
            "key_prefix": "out/data/c1/",
            "manifest_uri": "s3://lake/out/manifests/c1.json",
            "dead_letter_uri": "s3://lake/out/dead_letter/c1",
            "format": "parquet",
            "rows": 2,
            "resumed": 1,
            "reused": 0,
            "duplicates": 0,
            "errors": 1,
            "tokens": {"input": 10, "cached": 4, "output": 6},
            "submission_id": submission_id,
            "dashboard_url": f"{ray.url}/#/jobs/{submission_id}",
        }

    def test_on_local_disk_has_no_bucket(self, ray: FakeRay, run: Run) -> None:
        result = batch(destination="/out").execute(run.context())
        assert result["uri"] == "/out/data/c1"
        assert not {"bucket", "key_prefix"} & set(result)

    def test_goes_to_each_outlet_asset(self, ray: FakeRay, run: Run) -> None:
        asset = Asset("s3://lake/out/")
        result = batch(outlets=[asset]).execute(run.context())
        extra = run.outlet_events[asset].extra
        assert extra["manifest_uri"] == result["manifest_uri"]
        assert (extra["rows"], extra["resumed"], extra["errors"], extra["tokens"]["output"]) == (2, 1, 1, 6)
        assert not {"bucket", "key_prefix", "dashboard_url"} & set(extra)

    def test_of_any_entrypoint(self, ray: FakeRay, run: Run) -> None:
        result = RayJobOperator(task_id="t", entrypoint="python x.py", poll_interval=0.05).execute(
            run.context()
        )
        (submission_id,) = ray.jobs
        assert result == {
            "submission_id": submission_id,
            "status": "SUCCEEDED",
            "dashboard_url": f"{ray.url}/#/jobs/{submission_id}",
        }

    def test_the_link_is_there_while_the_job_runs(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True).execute(run.context())
        (submission_id,) = ray.jobs
        assert run.xcoms == {"_link_RayDashboardLink": f"{ray.url}/#/jobs/{submission_id}"}

    def test_the_link_outlives_the_worker(self, ray: FakeRay, run: Run) -> None:
        operator = batch()
        result = operator.execute(run.context())
        assert RayDashboardLink().get_link(operator, ti_key=None) == result["dashboard_url"]  # type: ignore[arg-type]

    def test_without_a_link_the_job_is_followed_all_the_same(self, ray: FakeRay, run: Run) -> None:
        def away(key: str, value: Any) -> None:
            raise ConnectionError("the API server is away")

        context = run.context()
        context["ti"].xcom_push = away
        assert batch().execute(context)["rows"] == 2

    def test_there_is_no_link_without_a_job(self, ray: FakeRay, run: Run) -> None:
        operator = batch(limit=0)
        with pytest.raises(RayBatchFailException):
            operator.execute(run.context())
        assert RayDashboardLink().get_link(operator, ti_key=None) == ""  # type: ignore[arg-type]

    def test_without_a_readable_log_is_worth_a_retry(self, ray: FakeRay, run: Run) -> None:
        ray.script = lambda ray, body: Script(["nothing of ours"])
        with pytest.raises(RayBatchException, match="its log is gone; a retry finds the dataset"):
            batch().execute(run.context())
        ray.script = committing
        assert batch().execute(run.context())["rows"] == 2
        assert [name[-2:] for name in ray.jobs] == ["-0", "-1"]


class TestOneSubmission:
    def test_a_retry_adopts_the_running_job(
        self, ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ray.script = lasting(1.0)
        operator = batch()
        with monkeypatch.context() as patched:
            patched.setattr(type(operator), "_follow", _die)
            with pytest.raises(Died):
                operator.execute(run.context())
        first = job_ids(ray)
        result = batch().execute(run.context())
        assert job_ids(ray) == first == [result["submission_id"]]

    def test_a_retry_returns_what_a_finished_job_left(
        self, ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operator = batch()
        with monkeypatch.context() as patched:
            patched.setattr(type(operator), "_end", _die)
            with pytest.raises(Died):
                operator.execute(run.context())
        for deferrable in (False, True):
            result = batch(deferrable=deferrable).execute(run.context())
            assert result["rows"] == 2
            run.store.values["raybatch_run"]["succeeded"] = False
        assert len(ray.jobs) == 1

    def test_a_lost_answer_doesnt_make_a_second_job(self, ray: FakeRay, run: Run) -> None:
        ray.drop_next_answer_to_post = True
        batch().execute(run.context())
        assert len(ray.jobs) == 1
        assert ray.requests.count(("POST", "/api/jobs/")) == 1

    def test_a_retry_after_a_failure_goes_on_in_the_same_run(self, ray: FakeRay, run: Run) -> None:
        ray.script = failing(FailureClass.ENGINE_DEAD)
        with pytest.raises(RayBatchException):
            batch().execute(run.context())
        ray.script = committing
        batch().execute(run.context())
        first, second = ray.jobs.values()
        specs = [ray.spec(job.body) for job in (first, second)]
        assert [job.body["submission_id"][-2:] for job in (first, second)] == ["-0", "-1"]
        assert specs[0]["submission"]["run_token"] == specs[1]["submission"]["run_token"]

    def test_a_clear_starts_anew_and_stops_what_is_left(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True).execute(run.context())
        (old,) = ray.jobs
        run.max_tries += 1
        ray.script = committing
        result = batch().execute(run.context())
        assert result["submission_id"] != old
        assert ray.jobs[old].status == "STOPPED"

    def test_a_cleared_success_runs_again(self, ray: FakeRay, run: Run) -> None:
        first = batch().execute(run.context())
        second = batch().execute(run.context())  # max_tries as it was
        assert first["submission_id"] != second["submission_id"]
        assert len(ray.jobs) == 2

    def test_nothing_is_submitted_without_the_store(self, ray: FakeRay, run: Run) -> None:
        run.store.broken = True
        with pytest.raises(RayBatchUnavailableException, match="task_state_store") as caught:
            batch().execute(run.context())
        assert not isinstance(caught.value, AirflowFailException)
        assert not ray.jobs

    def test_a_store_that_goes_away_at_the_end_spoils_nothing(
        self, ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hand_over = RayBatchInferenceOperator.hand_over

        def then_break(self: Any, *args: Any) -> Any:
            run.store.broken = True
            return hand_over(self, *args)

        monkeypatch.setattr(RayBatchInferenceOperator, "hand_over", then_break)
        assert batch().execute(run.context())["rows"] == 2

    def test_mapped_siblings_have_jobs_of_their_own(self, ray: FakeRay) -> None:
        for index in range(3):
            batch().execute(Run(map_index=index).context())
        assert len({job.body["metadata"]["raybatch.task_key"] for job in ray.jobs.values()}) == 3

    def test_namespaces_keep_two_airflows_apart(self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("a", "b"):
            text = connection(ray.url, extra=json.dumps({"namespace": name}))
            monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", text)
            batch().execute(Run().context())
        keys = {job.body["metadata"]["raybatch.task_key"] for job in ray.jobs.values()}
        assert len(keys) == 2

    @pytest.mark.parametrize(("choice", "stopped"), [("replace", True), ("adopt", False)])
    def test_changed_arguments(self, ray: FakeRay, run: Run, choice: Any, stopped: bool) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True).execute(run.context())
        (old,) = ray.jobs
        with pytest.raises(TaskDeferred):
            batch(deferrable=True, prompt="Sing {row.x}", on_stale_state=choice).execute(run.context())
        assert (ray.jobs[old].status == "STOPPED") is stopped
        assert len(ray.active) == 1

    def test_changed_arguments_can_be_refused(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True).execute(run.context())
        with pytest.raises(RayBatchFailException, match=r"on_stale_state: .*with other arguments"):
            batch(prompt="Sing {row.x}", on_stale_state="fail").execute(run.context())
        assert len(ray.active) == 1

    def test_other_limits_are_no_other_job(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        for timeout in (100, 200):
            with pytest.raises(TaskDeferred):
                batch(deferrable=True, timeout=timeout).execute(run.context())
        assert len(ray.jobs) == 1


def _die(*args: Any, **kwargs: Any) -> Any:
    raise Died


class TestFailure:
    @pytest.mark.parametrize("failure_class", list(FailureClass))
    def test_class_decides_about_a_retry(self, ray: FakeRay, run: Run, failure_class: FailureClass) -> None:
        ray.script = failing(failure_class, "The column 'x' is missing.")
        with pytest.raises(RayBatchException, match="The column 'x' is missing") as caught:
            batch().execute(run.context())
        assert caught.value.failure_class is failure_class
        assert isinstance(caught.value, AirflowFailException) is not failure_class.retryable

    def test_final_classes(self) -> None:
        final = {
            name for name in FailureClass if isinstance(airflow_exception(name, "x"), AirflowFailException)
        }
        assert final == {
            FailureClass.USER_ERROR,
            FailureClass.UNSCHEDULABLE,
            FailureClass.TOO_MANY_ERRORS,
            FailureClass.SUPERSEDED,
            FailureClass.LIMIT_REACHED,
            FailureClass.POISON_ROW,
        }

    def test_a_lost_cluster_is_worth_a_retry(self, ray: FakeRay, run: Run) -> None:
        def lost(ray: FakeRay, body: dict[str, Any]) -> Script:
            threading.Timer(0.4, ray.restart).start()  # only now, so that it is lost on a busy machine, too
            return lasting(60)(ray, body)

        ray.script = lost
        with pytest.raises(RayBatchException, match="lost") as caught:
            batch().execute(run.context())
        assert caught.value.failure_class is FailureClass.CLUSTER_LOST
        assert not isinstance(caught.value, AirflowFailException)
        ray.script = committing
        assert batch().execute(run.context())["rows"] == 2

    def test_bad_arguments_fail_before_anything_is_asked_of_the_cluster(self, ray: FakeRay, run: Run) -> None:
        with pytest.raises(
            RayBatchFailException, match=r"^limit: input should be greater than or equal to 1"
        ):
            batch(limit=0).execute(run.context())
        assert ray.requests == []

    def test_a_prompt_function_that_is_not_there(self, ray: FakeRay, run: Run) -> None:
        with pytest.raises(
            RayBatchFailException, match=r"^prompt_function: there is no module 'no_such_module'"
        ):
            batch(prompt=None, prompt_function="no_such_module:make").execute(run.context())
        assert ray.requests == []

    def test_a_wrong_token_fails_at_once(
        self, ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ray.token = "right"
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, password="wrong-token"))
        with pytest.raises(RayBatchFailException) as caught:
            batch().execute(run.context())
        assert "wrong-token" not in str(caught.value)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"poll_interval": 0}, "poll_interval: it must be more than 0 seconds"),
            ({"timeout": -1}, "timeout: it must be more than 0 seconds"),
            ({"timeout": "1h"}, "timeout: '1h' is no duration"),
            (
                {"on_stale_state": "ask"},
                "on_stale_state: 'ask' is unknown; use 'replace', 'adopt' or 'fail'.",
            ),
        ],
    )
    def test_misuse_is_found_when_the_dag_is_parsed(self, arguments: dict[str, Any], sentence: str) -> None:
        with pytest.raises(SpecError, match=sentence):
            batch(**arguments)

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"entrypoint": " "}, "entrypoint: ' ' is no command"),
            ({"entrypoint": "x", "metadata": "m"}, "metadata: 'm' is no dictionary"),
            (
                {"entrypoint": "x", "runtime_env": {"working_dir": "/no/such"}},
                "working_dir: '/no/such' does not",
            ),
        ],
    )
    def test_bad_arguments_of_any_entrypoint(
        self, ray: FakeRay, run: Run, arguments: dict[str, Any], sentence: str
    ) -> None:
        with pytest.raises(RayBatchFailException, match=sentence):
            RayJobOperator(task_id="t", **arguments).execute(run.context())
        assert not ray.jobs


class TestDeadline:
    def test_travels_with_the_job(self, ray: FakeRay, run: Run) -> None:
        batch(timeout=3600).execute(run.context())
        (job,) = ray.jobs.values()
        assert abs(ray.spec(job.body)["limits"]["deadline"] - time.time() - 3600) < 30

    @pytest.mark.parametrize(("timeout", "hours", "counts"), [(60, 1, 60), (7200, 1, 3600), (None, 1, 3600)])
    def test_is_the_earlier_of_two(
        self, ray: FakeRay, run: Run, timeout: float | None, hours: int, counts: float
    ) -> None:
        batch(timeout=timeout, deadline=datetime.now(UTC) + timedelta(hours=hours)).execute(run.context())
        (job,) = ray.jobs.values()
        assert abs(ray.spec(job.body)["limits"]["deadline"] - time.time() - counts) < 30

    def test_may_be_a_text(self, ray: FakeRay, run: Run) -> None:
        operator = batch(deadline="{{ ds }}T06:00:00+02:00")
        operator.render_template_fields({"ds": "2100-01-31"})  # type: ignore[typeddict-item]
        operator.execute(run.context())
        (job,) = ray.jobs.values()
        wanted = datetime(2100, 1, 31, 4, tzinfo=UTC).timestamp()
        assert ray.spec(job.body)["limits"]["deadline"] == wanted

    @pytest.mark.parametrize(
        ("deadline", "sentence"),
        [
            (
                "tomorrow",
                "deadline: 'tomorrow' is no moment; give a datetime, or ISO 8601 such as '2026-01-31T",
            ),
            (3600, "deadline: 3600 is no moment; give a datetime, or ISO 8601 such as"),
            ("2100-01-31T06:00:00", "deadline: '2100-01-31T06:00:00' has no time zone; add one, such as"),
            (datetime(2100, 1, 31), "deadline: datetime.datetime(2100, 1, 31, 0, 0) has no time zone; add"),  # noqa: DTZ001
            (
                "2020-01-31T06:00:00Z",
                "deadline: 2020-01-31T06:00:00+00:00 has passed already, so nothing was",
            ),
        ],
    )
    def test_that_cant_be_kept_is_refused(self, ray: FakeRay, run: Run, deadline: Any, sentence: str) -> None:
        with pytest.raises(RayBatchFailException) as caught:
            batch(deadline=deadline).execute(run.context())
        assert str(caught.value).startswith(sentence)
        assert str(caught.value).endswith(".")
        assert not ray.jobs

    def test_that_a_template_leaves_empty_is_none(self, ray: FakeRay, run: Run) -> None:
        batch(deadline="").execute(run.context())
        (job,) = ray.jobs.values()
        assert ray.spec(job.body)["limits"]["deadline"] is None

    def test_that_has_passed_keeps_no_result_back(
        self, ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deadline = datetime.now(UTC) + timedelta(seconds=2)
        with monkeypatch.context() as patched:
            patched.setattr(RayBatchInferenceOperator, "_end", _die)
            with pytest.raises(Died):
                batch(deadline=deadline).execute(run.context())
        time.sleep(max(0.0, deadline.timestamp() - time.time()))
        assert batch(deadline=deadline).execute(run.context())["rows"] == 2

    @pytest.mark.parametrize(("arguments", "final"), [({"deadline": True}, True), ({"timeout": 0.5}, False)])
    def test_of_the_run_leaves_no_retry(
        self, ray: FakeRay, run: Run, arguments: dict[str, Any], final: bool
    ) -> None:
        ray.script = lasting(60)
        if "deadline" in arguments:
            arguments = {"deadline": datetime.now(UTC) + timedelta(seconds=1)}
        operator = RayJobOperator(task_id="t", entrypoint="sleep 60", poll_interval=0.05, **arguments)
        with pytest.raises(RayBatchException, match="still RUNNING at its deadline") as caught:
            operator.execute(run.context())
        assert caught.value.failure_class is FailureClass.TIMEOUT
        assert isinstance(caught.value, AirflowFailException) is final
        assert not ray.active

    @pytest.mark.parametrize("cancel", [True, False])
    def test_ends_a_job_that_doesnt_end_itself(self, ray: FakeRay, run: Run, cancel: bool) -> None:
        ray.script = lasting(60)
        operator = RayJobOperator(
            task_id="t", entrypoint="sleep 60", timeout=0.5, poll_interval=0.05, cancel_on_timeout=cancel
        )
        with pytest.raises(RayBatchException, match="timeout: The job was still RUNNING") as caught:
            operator.execute(run.context())
        assert caught.value.failure_class is FailureClass.TIMEOUT
        assert bool(ray.active) is not cancel

    def test_gets_a_net_while_deferred(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred) as deferred:
            batch(deferrable=True, timeout=3600).execute(run.context())
        trigger, net = deferred.value.trigger, deferred.value.timeout
        assert 3600 < trigger.deadline - time.time() < 3700
        assert net is not None
        assert net.total_seconds() > 3700

    @pytest.mark.parametrize(("timeout", "expected"), [(None, 600), (60, 60), (3600, 600)])
    def test_is_also_airflows_own_bound_while_deferred(
        self, ray: FakeRay, run: Run, timeout: float | None, expected: float
    ) -> None:
        ray.script = lasting(60)
        bound = timedelta(minutes=10)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True, timeout=timeout, execution_timeout=bound).execute(run.context())
        (job,) = ray.jobs.values()
        assert abs(ray.spec(job.body)["limits"]["deadline"] - time.time() - expected) < 30

    @pytest.mark.parametrize(
        ("error", "failure_class"),
        [
            ("Trigger timeout", FailureClass.TIMEOUT),
            ("Trigger failure", FailureClass.INTERNAL),
        ],
    )
    def test_a_trigger_that_is_gone_leaves_no_job(
        self, ray: FakeRay, run: Run, error: str, failure_class: FailureClass
    ) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True).execute(run.context())
        assert ray.active
        with pytest.raises(RayBatchException) as caught:
            batch().resume_execution("__fail__", {"error": error}, run.context())
        assert caught.value.failure_class is failure_class
        assert not isinstance(caught.value, AirflowFailException)
        assert not ray.active

    @pytest.mark.parametrize("code", [503, 404])
    def test_a_cluster_that_is_away_for_a_while_is_asked_again_to_stop_it(
        self, ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, code: int
    ) -> None:
        from airflow_provider_raybatch.cluster import transport

        monkeypatch.setattr(transport.RetryPolicy, "wait", lambda policy, attempt: 0.0)
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True).execute(run.context())
        answer, back_at = ray.answer, time.monotonic() + 1.0

        def away(*arguments: Any) -> Any:
            return (code, "no backend") if time.monotonic() < back_at else answer(*arguments)

        monkeypatch.setattr(ray, "answer", away)
        with pytest.raises(RayBatchException):
            batch().resume_execution("__fail__", {"error": "Trigger timeout"}, run.context())
        assert not ray.active

    @pytest.mark.parametrize(
        "arguments", [{"timeout": timedelta.max}, {"deadline": "9999-12-31T23:59:59+00:00"}]
    )
    def test_that_never_comes_is_one_that_airflow_can_add_up(
        self, ray: FakeRay, run: Run, arguments: dict[str, Any]
    ) -> None:
        ray.script = lasting(60)
        with pytest.raises(TaskDeferred) as deferred:
            batch(deferrable=True, **arguments).execute(run.context())
        net = deferred.value.timeout
        assert net is not None
        assert datetime.now(UTC) + net

    def test_of_the_run_leaves_no_retry_when_the_trigger_is_gone(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        deadline = datetime.now(UTC) + timedelta(seconds=1)
        with pytest.raises(TaskDeferred):
            batch(deferrable=True, deadline=deadline).execute(run.context())
        time.sleep(max(0.0, deadline.timestamp() - time.time()))
        with pytest.raises(RayBatchFailException, match="did not end the job at its deadline") as caught:
            batch(deadline=deadline).resume_execution("__fail__", {"error": "Trigger timeout"}, run.context())
        assert caught.value.failure_class is FailureClass.TIMEOUT
        assert not ray.active


class TestAnyEntrypoint:
    def test_everything_arrives(self, ray: FakeRay, run: Run, tmp_path: Any) -> None:
        (tmp_path / "job.py").write_text("print('hello')\n")
        runtime_env = {"working_dir": str(tmp_path), "env_vars": {"A": "1"}}
        RayJobOperator(
            task_id="t", entrypoint="python job.py", runtime_env=runtime_env, entrypoint_num_cpus=1,
            entrypoint_resources={"x": 2}, entrypoint_label_selector={"zone": "a"}, metadata={"team": 7},
            poll_interval=0.05,
        ).execute(run.context())  # fmt: skip
        (job,) = ray.jobs.values()
        assert job.body["entrypoint"] == "python job.py"
        assert job.body["runtime_env"]["working_dir"].startswith("gcs://_ray_pkg_")
        assert job.body["runtime_env"]["env_vars"] == {"A": "1"}
        assert (job.body["entrypoint_num_cpus"], job.body["entrypoint_resources"]) == (1, {"x": 2})
        assert job.body["entrypoint_label_selector"] == {"zone": "a"}
        assert job.body["metadata"]["team"] == "7"
        assert runtime_env == {"working_dir": str(tmp_path), "env_vars": {"A": "1"}}

    def test_can_go_on_without_waiting(self, ray: FakeRay, run: Run) -> None:
        ray.script = lasting(60)
        operator = RayJobOperator(task_id="t", entrypoint="x", wait_for_completion=False, deferrable=True)
        result = operator.execute(run.context())
        assert (result["status"], ray.active) == ("RUNNING", [result["submission_id"]])


def test_a_retry_that_can_submit_nothing_leaves_no_job_to_nobody(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    with pytest.raises(TaskDeferred):
        batch(deferrable=True).execute(run.context())
    run.try_number = 2
    with pytest.raises(RayBatchFailException, match="limit"):
        batch(limit=0).execute(run.context())
    assert not ray.active


def test_another_runtime_env_makes_another_job(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(60)
    for value in "112":
        with pytest.raises(TaskDeferred):
            batch(deferrable=True, runtime_env={"env_vars": {"A": value}}).execute(run.context())
    assert len(ray.jobs) == 2
    assert len(ray.active) == 1
