# SPDX-License-Identifier: Apache-2.0
"""What a preview job reports reaches who asked; a job that does not report is one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.follow import preview
from airflow_provider_raybatch.cluster.follow.preview import run_preview
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.submit.request import PREVIEW, build_preview_request
from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.preview import ORPHAN_TIMEOUT, Preview, PreviewRequest, PreviewRow
from tests.support.fake_ray import FakeRay, Script
from tests.support.specs import submitted

KEY = "cd" * 32
ROW = events.RowPreviewed(row=PreviewRow(ordinal=3, tokens=7))
END = events.Previewed(preview=Preview(rows=9, rows_shown=1))


async def previewed(client: RayJobsClient, timeout: float = 60.0) -> list[Any]:  # noqa: ASYNC109
    request = await build_preview_request(
        client, submitted(), PreviewRequest(verb="preview", rows=4), key=KEY
    )
    return await run_preview(client, request, KEY, timeout)


def reporting(*reported: events.Event, status: str = "SUCCEEDED", message: str = "") -> Any:
    def script(ray: FakeRay, body: dict[str, Any]) -> Script:
        lines = [ray.line(body, event, number) for number, event in enumerate(reported)]
        copied = [f"user's print {lines[0]}"] if lines else []
        return Script(lines=[*lines, *copied], status=status, message=message)

    return script


async def test_rows_and_end_are_read(client: RayJobsClient, ray: FakeRay) -> None:
    ray.script = reporting(events.Phase(phase="preflight", message="checking"), ROW, END)
    assert await previewed(client) == [ROW, END]
    (job,) = ray.jobs.values()
    assert job.body["entrypoint"] == PREVIEW
    assert not job.body.get("metadata")
    assert "entrypoint_num_gpus" not in job.body


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        pytest.param(
            reporting(events.Failed(failure_class=FailureClass.USER_ERROR, message="source: gone.")),
            "source: gone.",
            id="its own reason",
        ),
        pytest.param(
            reporting(ROW, status="FAILED", message="boom"), "without a report: .*boom", id="no end"
        ),
        pytest.param(reporting(status="STOPPED"), "stopped outside of this command", id="stopped"),
    ],
)
async def test_a_failed_preview_is_one_sentence(
    client: RayJobsClient, ray: FakeRay, script: Any, sentence: str
) -> None:
    ray.script = script
    with pytest.raises(RaybatchError, match=sentence):
        await previewed(client)


async def test_a_waiting_caller_renews_the_lease(
    client: RayJobsClient, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it waits for, each sentence once; a caller that is gone leaves a job that ends itself."""
    monkeypatch.setattr(preview, "_POLL", 0.01)
    phases = [
        events.Phase(phase=name, message=f"{name} begins") for name in ("preflight", "waiting", "asking")
    ]
    ray.script = lambda ray, body: Script(
        lines=[ray.line(body, event, number) for number, event in enumerate(phases)],
        last=[ray.line(body, END, 3)],
        pending=math.inf,
        seconds=math.inf,
    )
    ray.stage("GET", "/api/jobs/", lambda answer: answer(), times=2)
    ray.stage("GET", "/api/jobs/", lambda answer: (ray.start_jobs(), answer())[1])
    ray.at_poll(4, ray.end_jobs)
    said: list[str] = []
    request = await build_preview_request(client, submitted(), PreviewRequest(verb="preview"), key=KEY)
    assert await run_preview(client, request, KEY, 60.0, said.append) == [END]
    (job,) = ray.jobs.values()
    name = job.body["submission_id"]
    assert said == [
        f"submitting job {name} to {ray.url}",
        f"the cluster has queued job {name}: Job has not started yet.",
        *(event.message for event in phases),
    ]
    order = ray.order(job.body)
    assert order is not None
    assert order.orphan_timeout == ray.spec(job.body)["orphan_timeout"] == ORPHAN_TIMEOUT


async def test_a_preview_that_takes_too_long_is_stopped(client: RayJobsClient, ray: FakeRay) -> None:
    ray.script = lambda ray, body: Script(seconds=math.inf)
    with pytest.raises(RaybatchError, match=r"has not reported after 0 s") as caught:
        await previewed(client, timeout=0.0)
    assert caught.value.failure_class is FailureClass.TIMEOUT
    assert ray.active == []
