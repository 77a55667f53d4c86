# SPDX-License-Identifier: Apache-2.0
"""The lines about a job in its task's log."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.events import Committed
from tests.support.airflow_tasks import Run
from tests.support.batches import batch, defer
from tests.support.fake_ray import FakeRay, Script, lasting, summary


def test_names_the_job_and_its_page(ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ray.script = lasting(60)
    defer(run)
    (job,) = ray.jobs
    assert f"Submitted Ray job {job}: {ray.url}/#/jobs/{job} (" in capsys.readouterr().out
    run.try_number = 2
    defer(run)
    assert f"Re-attached to running job {job}: {ray.url}/#/jobs/{job} (" in capsys.readouterr().out
    ray.jobs[job].script.seconds = 0
    run.try_number = 3
    batch(deferrable=True).execute(run.context())
    assert f"Found finished job {job}: {ray.url}/#/jobs/{job} (" in capsys.readouterr().out


def test_says_why_a_job_was_submitted(ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ray.script = lasting(60)
    defer(run)
    assert " (the first job of this run)." in capsys.readouterr().out
    run.clear()
    defer(run)
    assert " (a new run began, as after each clear)." in capsys.readouterr().out


@pytest.mark.parametrize("errors", [0, 1])
def test_failed_rows_are_a_warning(
    ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str], errors: int
) -> None:
    committed = Committed(summary=summary(rows=1200, errors=errors))
    ray.script = lambda ray, body: Script(last=[ray.line(body, committed)])
    batch().execute(run.context())
    warnings = [line for line in capsys.readouterr().out.splitlines() if "rows failed" in line]
    assert len(warnings) == errors
    for line in warnings:
        assert "[warning" in line
        assert "1 of 1,201 rows failed" in line
        assert "s3://lake/out/dead_letter/c1" in line
