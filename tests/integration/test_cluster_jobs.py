# SPDX-License-Identifier: Apache-2.0
"""The Jobs API client, submission and following against a real Ray."""

from __future__ import annotations

import asyncio
import json
import shlex
import textwrap
import uuid

import pytest

from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.outcome import FollowState
from airflow_provider_raybatch.cluster.follow.poll import Followed, follow, poll_once
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.jobs_api.errors import JobExistsError, RequestRejectedError
from airflow_provider_raybatch.cluster.jobs_api.models import JobRequest, JobStatus
from airflow_provider_raybatch.cluster.submit.package import Package, ensure_package
from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey, stop_older, submit_or_adopt
from airflow_provider_raybatch.cluster.submit.runtime_env import upload_runtime_env
from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.run_numbers import Tokens
from airflow_provider_raybatch.contract.submission import TaskKey

KEY = "ab" * 32
SUMMARY = Summary(uri="/o", manifest_uri="/m", format="parquet", rows=3, errors=0, tokens=Tokens())


@pytest.fixture
async def client(ray_cluster):
    async with RayJobsClient(ray_cluster.address) as opened:
        yield opened


@pytest.fixture
async def name(client):
    """A fresh submission id; jobs that still run under it at the end are stopped."""
    name_prefix = f"test-{uuid.uuid4().hex[:12]}"
    yield name_prefix
    for job in await client.jobs():
        if job.submission_id.startswith(name_prefix) and job.status is JobStatus.RUNNING:
            await client.stop_until_terminal(job.submission_id, 60)


def python(code):
    return f"python -c {shlex.quote(textwrap.dedent(code))}"


async def run(client, request, **options):
    await client.submit(request)
    lines = []
    session = (await client.version()).session_name
    job = Followed(request.submission_id, session, **{"poll_interval": 0.3, **options})
    return await follow(client, job, lines.extend), lines


async def test_lines_come_once_and_in_order_and_events_speak(client, name):
    committed = events.line(events.Committed(summary=SUMMARY), KEY, 1)
    code = f"""
        import time
        for number in range(40):
            print("row", number)
            time.sleep(0.05)
        print({events.line(events.Progress(done=3, total=9), KEY, 0)!r})
        print({committed!r})
        print("without a line feed", end="")
    """
    outcome, lines = await run(
        client, JobRequest(python(code), name), lease=Lease(LeaseTerms(KEY, attempt=1))
    )
    texts = [line.text for line in lines]
    assert [text for text in texts if text.startswith("row")] == [f"row {number}" for number in range(40)]
    assert texts[-3:] == [
        "3 of 9 rows (33.3 %)",
        events.Committed(summary=SUMMARY).text(),
        "without a line feed",
    ]
    assert (outcome.state, outcome.summary) == ("succeeded", SUMMARY)
    assert outcome.info.driver_exit_code == 0


async def test_a_long_log_is_read_by_its_end(client, name):
    # In one write: a slow job whose log grows between polls leaves less out.
    code = "print(*(f'{50 * chr(120)} {n}' for n in range(50000)), sep=chr(10))"
    outcome, lines = await run(client, JobRequest(python(code), name))
    assert outcome.state == "succeeded"
    tail = (await client.log_tail(outcome.info, 5)).lines
    assert tail == [f"{'x' * 50} {number}" for number in range(49995, 50000)]
    assert lines[-1].text == tail[-1]
    assert len(lines) < 5000
    assert any("left out" in line.text for line in lines)


async def test_very_long_lines_are_cut(client, name):
    """Ray's answer is broken off, and the next one has fewer lines."""
    code = "print(*(f'{300_000 * chr(120)} {n}' for n in range(100)), sep=chr(10)); print('after')"
    outcome, lines = await run(client, JobRequest(python(code), name))
    assert outcome.state == "succeeded"
    assert lines[-1].text == "after"
    assert lines[-2].text.endswith(" more bytes in this line] ")
    assert sum(len(line.text) for line in lines) < 2_000_000
    assert any("left out" in line.text for line in lines)


async def test_a_failing_driver(client, name):
    """Ray hands on what it printed, NUL bytes included."""
    outcome, lines = await run(client, JobRequest(python("print(chr(0)); 1 / 0"), name))
    assert "\0" not in json.dumps(outcome.to_json(), ensure_ascii=False)
    assert "\ufffd" in [line.text for line in lines]
    assert "\0" not in outcome.info.message
    assert (outcome.state, outcome.failure_class) == ("failed", FailureClass.INTERNAL)
    assert outcome.message == "The job failed (exit code 1): ZeroDivisionError: division by zero"


async def test_a_killed_driver(client, name):
    outcome, _ = await run(client, JobRequest(python("import os; os.kill(os.getpid(), 9)"), name))
    assert (outcome.state, outcome.failure_class) == ("failed", FailureClass.OUT_OF_MEMORY)


async def test_a_package_that_is_gone(client, name):
    request = JobRequest("true", name, runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"})
    outcome, _ = await run(client, request)
    assert outcome.info.error_type == "RUNTIME_ENV_SETUP_FAILURE"
    assert outcome.failure_class.retryable


async def test_an_id_is_used_once(client, name):
    await client.submit(JobRequest("sleep 60", name))
    with pytest.raises(JobExistsError, match=name):
        await client.submit(JobRequest("sleep 60", name))
    info = await client.stop_until_terminal(name, 60)
    assert info.status is JobStatus.STOPPED
    async with asyncio.timeout(30):
        while await client.stop(name):  # noqa: ASYNC110 - Ray's supervisor of the job outlives its status
            await asyncio.sleep(0.5)
    with pytest.raises(JobExistsError):
        await client.submit(JobRequest("sleep 60", name))
    verdict = await poll_once(client, Followed(name), FollowState())
    assert (verdict.outcome.state, verdict.outcome.failure_class) == ("stopped", FailureClass.CANCELLED)


async def test_unknown_jobs(client, name):
    assert await client.info(name) is None
    assert await client.stop(name) is False
    assert await client.stop_until_terminal(name, 1) is None
    session = (await client.version()).session_name
    verdict = await poll_once(client, Followed(name), FollowState(session_name=session))
    assert verdict.outcome.state == "deleted"


@pytest.mark.parametrize(
    "request_fields",
    [{"metadata": {"a": 1}}, {"entrypoint": 5}, {"entrypoint_label_selector": {"a": "!in("}}],
)
async def test_wrong_requests_are_refused_and_leave_no_job(client, name, request_fields):
    fields = {"entrypoint": "true", "submission_id": name, **request_fields}
    with pytest.raises(RequestRejectedError, match="refused POST"):
        await client.submit(JobRequest(**fields))
    assert await client.info(name) is None


async def test_a_runtime_env_that_ray_can_not_read(client, name):
    outcome, _ = await run(client, JobRequest("true", name, runtime_env={"env_vars": {"A": 1}}))
    assert (outcome.state, outcome.failure_class) == ("failed", FailureClass.USER_ERROR)
    assert "TypeError" in outcome.message
    assert "env_vars" in outcome.message


async def test_resources_of_the_driver_are_taken(client, name):
    request = JobRequest(
        "true",
        name,
        entrypoint_num_cpus=1,
        entrypoint_memory=1000,
        entrypoint_resources={"node:__internal_head__": 0.001},
    )
    assert (await run(client, request))[0].state == "succeeded"


async def test_packages_and_local_folders(client, name, tmp_path):
    package = Package({"a.txt": uuid.uuid4().bytes})
    assert not await client.has_package(package.uri)
    await ensure_package(client, package)
    assert await client.has_package(package.uri)
    (tmp_path / "mymodule").mkdir()
    (tmp_path / "mymodule/__init__.py").write_text("WORD = 'from the module'")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/main.py").write_text("import mymodule; print(mymodule.WORD)")
    local = {"working_dir": tmp_path / "work", "py_modules": [tmp_path / "mymodule"]}
    request = JobRequest("python main.py", name, runtime_env=await upload_runtime_env(client, local))
    outcome, lines = await run(client, request)
    assert outcome.state == "succeeded"
    # Ray may write its own line, which it holds back, after that of a fast process.
    assert "from the module" in [line.text for line in lines]


async def test_one_job_whatever_dies(client):
    task = TaskKey(dag_id="d", run_id=uuid.uuid4().hex, task_id="t")
    key = SubmissionKey(task, "token-1")

    async def build(submission_id):
        return JobRequest("sleep 100", submission_id)

    # Two processes at once, as when a worker was wrongly taken for dead.
    both = await asyncio.gather(*(submit_or_adopt(client, key, "f", build) for _ in range(2)))
    assert {each.submission_id for each in both} == {key.submission_id(0)}
    again = await submit_or_adopt(client, key, "f", build)
    assert (again.submission_id, again.adopted) == (key.submission_id(0), True)
    # With other arguments, the running job is replaced.
    replaced = await submit_or_adopt(client, key, "g", build)
    assert (replaced.submission_id, replaced.adopted) == (key.submission_id(1), False)
    assert (await client.info(key.submission_id(0))).status is JobStatus.STOPPED
    # A clear: another run of the same task, which stops the former's job.
    cleared = await submit_or_adopt(client, SubmissionKey(task, "token-2"), "g", build)
    assert await stop_older(client, task.digest, cleared.submission_id) == [key.submission_id(1)]
    mine = [job for job in await client.jobs() if job.metadata.get("raybatch.task_key") == task.digest]
    assert [job.submission_id for job in mine if not job.status.is_terminal] == [cleared.submission_id]
    assert len(mine) == 3
    await client.stop_until_terminal(cleared.submission_id, 60)
