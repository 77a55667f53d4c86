# SPDX-License-Identifier: Apache-2.0
"""What is done about a run's RayJobs and their Ray jobs, in every state of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobStatus
from airflow_provider_raybatch.cluster.submit.resolve import FINGERPRINT, RUN_TOKEN, Action
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.kubernetes.kuberay.claim import FIRST_CLUSTER, decide_cluster
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import TERMINAL, RayJobState
from airflow_provider_raybatch.kubernetes.kuberay.submission import decide_job

TOKEN = "try1-token"
POLICIES: tuple[OnStaleState, ...] = ("replace", "adopt", "fail")
STATUSES = ("", "Initializing", "Waiting", "Running", "Suspending", "Suspended", *sorted(TERMINAL))


def rayjob(number: int = 0, **fields: Any) -> RayJobState:
    given = {
        "name": f"raybatch-x-{number}",
        "uid": f"uid-{number}",
        "number": number,
        "run_token": TOKEN,
        "fingerprint": "f",
        "created": 0.0,
        "deleting": False,
        "suspended": fields.get("deployment_status") in {"Suspending", "Suspended"},
        "deployment_status": "Waiting",
        "job_status": "",
        "job_id": "",
        "reason": "",
        "message": "",
        "ray_cluster": "",
        "started": None,
        "active_deadline": None,
        "secret": "s",
    }
    return RayJobState(**{**given, **fields})


def expected(found: RayJobState, same: bool, policy: OnStaleState, finished: bool) -> Action:
    """The same rule as in the code, written in another way."""
    if found.deleting:
        return Action.WAIT
    job_can_count = finished if found.terminal else not (found.suspended and found.job_id)
    if not job_can_count:
        return Action.REPLACE
    if same or policy == "adopt":
        return Action.ADOPT
    return Action.FAIL if policy == "fail" else Action.REPLACE


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("status", STATUSES)
def test_every_state_of_the_latest_rayjob_is_decided(status: str, policy: OnStaleState) -> None:
    for job_id, deleting, same, finished in itertools.product(("", "job"), *[(False, True)] * 3):
        found = rayjob(
            2, deployment_status=status, job_id=job_id, deleting=deleting, fingerprint="f" if same else "g"
        )
        decision = decide_cluster(
            [rayjob(0), found, rayjob(1)],
            run_token=TOKEN,
            fingerprint="f",
            on_stale_state=policy,
            finished=finished,
        )
        assert decision.action is expected(found, same, policy, finished)
        assert (decision.latest, decision.number) == (found, 3)
        assert [one.number for one in decision.superseded] == [0, 1]
        assert found.name in decision.reason
        assert not decision.foreign


@pytest.mark.parametrize(("least", "number"), [(0, 0), (3, 3)])
def test_a_run_without_rayjobs_creates_the_first(least: int, number: int) -> None:
    decision = decide_cluster([], run_token=TOKEN, fingerprint="f", least=least)
    assert (decision.action, decision.number) == (Action.SUBMIT, number)
    assert decision.reason == FIRST_CLUSTER


@pytest.mark.parametrize("strange", [{"run_token": "try2-token"}, {"run_token": ""}, {"number": -1}])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_rayjob_without_our_annotations_stops_all(strange: dict[str, Any], policy: OnStaleState) -> None:
    """It may run a job of this run; that can't be proven, so it is neither used nor deleted."""
    options: Any = {"run_token": TOKEN, "fingerprint": "f", "on_stale_state": policy}
    unknown = {"number": 1, **strange}
    decision = decide_cluster([rayjob(**unknown), rayjob(2)], **options)
    assert (decision.action, decision.foreign) == (Action.FAIL, True)
    assert "annotations" in decision.reason
    decision = decide_cluster([rayjob(**unknown, deleting=True)], **options)
    assert decision.action is Action.WAIT
    ended = rayjob(**unknown, deployment_status="Failed")
    if ended.run_token != TOKEN:
        assert decide_cluster([ended], **options).action is Action.SUBMIT


def test_reasons_say_how_a_cluster_has_ended() -> None:
    ended = rayjob(deployment_status="Failed", reason="DeadlineExceeded")
    decision = decide_cluster([ended], run_token=TOKEN, fingerprint="f")
    assert decision.reason == "RayJob raybatch-x-0 of this run has ended (Failed, DeadlineExceeded)"
    suspended = rayjob(deployment_status="Suspended", job_id="job-0")
    decision = decide_cluster([suspended], run_token=TOKEN, fingerprint="f")
    assert decision.reason == "RayJob raybatch-x-0 was suspended, which ended its job job-0"


def job(status: JobStatus, fingerprint: str = "f", token: str = TOKEN) -> JobInfo:
    return JobInfo("job-0", status, metadata={RUN_TOKEN: token, FINGERPRINT: fingerprint})


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("status", JobStatus)
def test_every_state_of_a_clusters_job_is_decided(
    status: JobStatus, policy: OnStaleState, attached: bool
) -> None:
    """A cluster has one job: where the job does not count, the cluster is replaced."""
    for same, finished in itertools.product((False, True), repeat=2):
        decision = decide_job(
            job(status, "f" if same else "g"),
            "job-0",
            attached=attached,
            run_token=TOKEN,
            fingerprint="f",
            on_stale_state=policy,
            finished=finished,
        )
        if status.is_terminal and not finished:
            assert decision.action is Action.REPLACE
        elif same or policy == "adopt":
            assert decision.action is Action.ADOPT
        else:
            assert decision.action is (Action.FAIL if policy == "fail" else Action.REPLACE)


def test_a_job_that_is_not_there_is_submitted_once() -> None:
    options: Any = {"run_token": TOKEN, "fingerprint": "f"}
    assert decide_job(None, "job-0", attached=False, **options).action is Action.SUBMIT
    lost = decide_job(None, "job-0", attached=True, **options)
    assert lost.action is Action.REPLACE
    assert lost.reason == "job job-0 is lost, as its head has restarted"
    other = decide_job(job(JobStatus.RUNNING, token="other"), "job-0", attached=False, **options)
    assert other.action is Action.REPLACE
