# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import itertools
import re
import threading

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import (
    ClusterError,
    ClusterUnreachableError,
    StopTimeoutError,
)
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest, JobStatus, sanitised
from airflow_provider_raybatch.cluster.submit.resolve import (
    FINGERPRINT,
    RUN_TOKEN,
    TASK_KEY,
    Action,
    SubmissionKey,
    decide,
    stop_older,
    stop_run,
    submit_or_adopt,
)
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import TaskKey
from tests.support.fake_ray import NO_ANSWER

TASK = TaskKey(dag_id="d", run_id="scheduled__2026-11-21T00:00:00+00:00", task_id="group.t")
KEY = SubmissionKey(TASK, "token-1")
ID = KEY.submission_id


async def build(submission_id):
    return JobRequest("true", submission_id, metadata={"own": "1"})


def job(status, fingerprint="f", token="token-1"):
    return JobInfo(ID(0), status, metadata={RUN_TOKEN: token, FINGERPRINT: fingerprint})


def test_ids_are_stable_distinct_and_safe():
    assert ID(0) == SubmissionKey(TaskKey(**TASK.model_dump()), "token-1").submission_id(0)
    keys = [
        KEY,
        SubmissionKey(TASK, "token-2"),
        SubmissionKey(TASK.model_copy(update={"map_index": 1}), "token-1"),
        SubmissionKey(TASK.model_copy(update={"namespace": "other"}), "token-1"),
    ]
    ids = [key.submission_id(k) for key in keys for k in (0, 1)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"raybatch-d-group-t-[0-9a-f]{24}-[01]", each) for each in ids)


@pytest.mark.parametrize(
    ("dag_id", "task_id", "slug"),
    [
        ("nightly", "group.label_companies", "nightly-group-label-companies-"),
        ("Täglich__Äpfel ", "--t--", "t-glich-pfel-t-"),
        ("d" * 250, "t" * 31 + ".x", f"{'d' * 32}-{'t' * 31}-"),
        ("夜間", "分類", ""),
    ],
)
def test_ids_name_dag_and_task(dag_id, task_id, slug):
    one = SubmissionKey(TaskKey(dag_id=dag_id, run_id="r", task_id=task_id), "token").submission_id(0)
    assert re.fullmatch(rf"raybatch-{slug}[0-9a-f]{{24}}-0", one)
    assert len(one) <= 101
    assert sanitised(one) == one


POLICIES = ("replace", "adopt", "fail")
ACTIVE = (JobStatus.PENDING, JobStatus.RUNNING)


def expected(status, same_fingerprint, policy, finished):
    """The same rule as in the code, written in another way."""
    if status not in ACTIVE:
        if not finished:
            return Action.SUBMIT
        if same_fingerprint or policy == "adopt":
            return Action.ADOPT
        return Action.FAIL if policy == "fail" else Action.SUBMIT
    if same_fingerprint or policy == "adopt":
        return Action.ADOPT
    return Action.FAIL if policy == "fail" else Action.REPLACE


@pytest.mark.parametrize(
    ("status", "same", "policy", "finished"),
    list(itertools.product(JobStatus, (True, False), POLICIES, (True, False))),
)
def test_every_state_of_the_latest_job_is_decided(status, same, policy, finished):
    decision = decide(
        job(status),
        run_token="token-1",
        fingerprint="f" if same else "g",
        on_stale_state=policy,
        finished=finished,
    )
    assert decision.action is expected(status, same, policy, finished)
    assert ID(0) in decision.reason


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("status", [None, *JobStatus])
def test_only_a_job_of_this_run_counts(status, policy):
    latest = None if status is None else job(status, token="token-2")
    options = {"on_stale_state": policy, "finished": True}
    assert decide(latest, run_token="token-1", fingerprint="f", **options).action is Action.SUBMIT


async def test_second_submission_adopts_the_first(ray, client):
    submitted = await submit_or_adopt(client, KEY, "f", build)
    assert (submitted.submission_id, submitted.adopted) == (ID(0), False)
    assert submitted.session_name == ray.session_name
    assert submitted.info.metadata == {"job_name": KEY.job_name, "own": "1", **KEY.metadata("f")}
    ray.requests.clear()
    again = await submit_or_adopt(client, KEY, "f", build)
    assert (again.submission_id, again.adopted) == (ID(0), True)
    assert ray.count("POST") == 0
    assert ray.count("GET", "/api/jobs/") == 2


async def test_an_ended_job_is_followed_by_the_next_number(ray, client):
    for k in range(3):
        submitted = await submit_or_adopt(client, KEY, f"f{k}", build, on_stale_state="fail")
        assert (submitted.submission_id, submitted.adopted) == (ID(k), False)
        ray.jobs[ID(k)].end("FAILED")


@pytest.mark.parametrize(("finished", "k", "adopted"), [(True, 0, True), (False, 1, False)])
async def test_a_succeeded_job_counts_if_its_result_stands(ray, client, finished, k, adopted):
    await submit_or_adopt(client, KEY, "f", build)
    ray.jobs[ID(0)].end("SUCCEEDED")
    asked = []

    async def is_finished(info):
        asked.append(info.submission_id)
        return finished

    submitted = await submit_or_adopt(client, KEY, "f", build, finished=is_finished)
    assert (submitted.submission_id, submitted.adopted) == (ID(k), adopted)
    assert asked == [ID(0)]


async def test_the_job_to_replace_must_end_first(ray, client):
    await submit_or_adopt(client, KEY, "f", build)
    ray.stops_needed = 1000
    with pytest.raises(StopTimeoutError, match="still RUNNING"):
        await submit_or_adopt(client, KEY, "g", build, stop_timeout=0.1)
    assert list(ray.jobs) == [ID(0)]


@pytest.mark.parametrize("seen", [NO_ANSWER, (502, "bad gateway")])
async def test_a_lost_answer_to_the_post_makes_no_second_job(ray, client, seen):
    def lose(answer):
        assert answer()[0] == 200
        return seen

    ray.stage("POST", "/api/jobs/", lose)
    submitted = await submit_or_adopt(client, KEY, "f", build)
    assert submitted.submission_id == ID(0)
    assert ray.count("POST") == 1
    assert list(ray.jobs) == [ID(0)]


@pytest.mark.parametrize(
    "refusal", [(500, "No available agent to submit job"), (404, "default backend")], ids=["agent", "proxy"]
)
async def test_a_post_that_was_turned_away_is_sent_again(ray, client, refusal):
    ray.stage("POST", "/api/jobs/", refusal)
    assert (await submit_or_adopt(client, KEY, "f", build)).submission_id == ID(0)
    assert ray.count("POST") == 2
    ray.stage("POST", "/api/jobs/", refusal, times=20)
    with pytest.raises(ClusterUnreachableError, match=refusal[1]):
        await submit_or_adopt(client, SubmissionKey(TASK, "token-2"), "f", build)
    assert ray.count("POST") == 2 + 4


async def test_two_at_once_come_to_one_job(ray, client):
    both = await asyncio.gather(*(submit_or_adopt(client, KEY, "f", build) for _ in range(2)))
    assert {each.submission_id for each in both} == {ID(0)}
    assert list(ray.jobs) == [ID(0)]


async def test_a_race_with_other_arguments_is_judged_again(ray, client):
    async def overtaken(submission_id):
        if submission_id == ID(0):
            other = await build(submission_id)
            ray.submit(**{**other.body(), "metadata": KEY.metadata("other")})
        return await build(submission_id)

    submitted = await submit_or_adopt(client, KEY, "f", overtaken)
    assert (submitted.submission_id, submitted.adopted) == (ID(1), False)
    assert ray.jobs[ID(0)].status == "STOPPED"


async def test_a_job_that_vanishes_after_its_post(ray, client):
    ray.stage("POST", "/api/jobs/", (200, "{}"))
    with pytest.raises(ClusterError, match="vanished") as raised:
        await submit_or_adopt(client, KEY, "f", build)
    assert raised.value.failure_class is FailureClass.CLUSTER_LOST


async def test_older_runs_of_the_task_are_stopped_and_nothing_else(ray, client):
    other_task = SubmissionKey(TaskKey(dag_id="d", run_id="r", task_id="other"), "token")
    for key in (SubmissionKey(TASK, "token-0"), other_task, KEY, SubmissionKey(TASK, "token-2")):
        await submit_or_adopt(client, key, "f", build)
    older = SubmissionKey(TASK, "token-0").submission_id(0)
    assert await stop_older(client, TASK.digest, ID(0)) == [older]
    states = {name: each.status for name, each in ray.jobs.items()}
    assert states.pop(older) == "STOPPED"
    assert set(states.values()) == {"RUNNING"}


async def test_without_the_job_to_keep_nothing_is_stopped(ray, client):
    await submit_or_adopt(client, KEY, "f", build)
    assert await stop_older(client, TASK.digest, "raybatch-unknown-0") == []
    assert ray.jobs[ID(0)].status == "RUNNING"


async def test_run_is_stopped_by_its_ids_among_many_jobs(ray, client):
    other = SubmissionKey(TASK, "token-2")
    await submit_or_adopt(client, other, "f", build)
    await submit_or_adopt(client, KEY, "f", build)
    ray.jobs[ID(0)].end("FAILED")
    await submit_or_adopt(client, KEY, "f", build)
    ray.requests.clear()
    assert await stop_run(client, KEY) == ID(1)
    assert await stop_run(client, KEY) is None
    assert await stop_run(client, SubmissionKey(TASK, "token-3")) is None
    assert ray.jobs[ID(1)].status == "STOPPED"
    assert ray.jobs[other.submission_id(0)].status == "RUNNING"
    assert ("GET", "/api/jobs/") not in ray.requests


async def test_stopping_is_repeated_until_the_job_has_ended(ray, client):
    await submit_or_adopt(client, KEY, "f", build)
    ray.stops_needed = 3
    info = await client.stop_until_terminal(ID(0), 20)
    assert info.status is JobStatus.STOPPED
    assert ray.count("POST", f"/api/jobs/{ID(0)}/stop") == 3
    assert await client.stop_until_terminal("unknown", 1) is None


@pytest.mark.parametrize("name", [TASK_KEY, RUN_TOKEN, FINGERPRINT, "job_name"])
async def test_metadata_of_the_user_hides_no_job(ray, client, name):
    async def named(submission_id):
        return JobRequest("true", submission_id, metadata={name: "mine", "größe": "日本"})

    jobs = [await submit_or_adopt(client, KEY, "f", named) for _ in range(2)]
    assert [job.adopted for job in jobs] == [False, True]
    (job,) = ray.jobs.values()
    ours = {"job_name": "mine" if name == "job_name" else f"d.group.t / {TASK.run_id}", **KEY.metadata("f")}
    assert job.body["metadata"] == {**ours, "größe": "日本"}


async def test_a_task_with_any_name_finds_its_job_again(ray, client):
    names = {"namespace": "Büro", "dag_id": "tägliche_berichte", "run_id": "r 日本", "task_id": "größe"}
    key = SubmissionKey(TaskKey(**names, map_index=3), "token")
    jobs = [await submit_or_adopt(client, key, "f", build) for _ in range(2)]
    assert [job.adopted for job in jobs] == [False, True]
    (name,) = ray.jobs
    assert name.isascii()
    metadata = {f"raybatch.{field}": value for field, value in names.items()}
    metadata |= {"raybatch.map_index": "3", "job_name": "tägliche_berichte.größe [3] / r 日本"}
    assert ray.jobs[name].body["metadata"].items() >= metadata.items()


async def test_cancelled_submission_returns_once_its_job_exists(ray, client):
    arrived, may_answer = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def make_slowly(answer):
        loop.call_soon_threadsafe(arrived.set)
        assert may_answer.wait(60)
        return answer()

    ray.stage("POST", "/api/jobs/", make_slowly)
    submitting = asyncio.create_task(submit_or_adopt(client, KEY, "f", build))
    await arrived.wait()
    submitting.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not submitting.done()
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await submitting
    assert list(ray.jobs) == [ID(0)]
