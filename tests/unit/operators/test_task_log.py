# SPDX-License-Identifier: Apache-2.0
"""The lines about a job in its task's log."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Committed
from airflow_provider_raybatch.contract.run_numbers import LastRun
from airflow_provider_raybatch.operators.handover import closing_line, failed_rows
from tests.support.airflow_tasks import Run
from tests.support.approved import AssertSentences
from tests.support.batches import batch, defer, die_before
from tests.support.fake_ray import FakeRay, Script, lasting, summary


def test_names_the_job_and_its_page(ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ray.script = lasting(600)
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
    ray.script = lasting(600)
    defer(run)
    assert " (the first job of this run)." in capsys.readouterr().out
    run.clear()
    defer(run)
    assert " (the first job of a new run)." in capsys.readouterr().out


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


LINE = "2 rows ok, 1 failed (engine: it broke), 1 resumed, 3 tokens generated, 3 min 5 s, 1.50 EUR"


def closing_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    told = (line.partition("] ")[2] for line in capsys.readouterr().out.splitlines())
    return [line.partition(" [airflow.")[0] for line in told if " ok, " in line]


class TestClosingLine:
    def test_is_the_last_one_of_each_way_to_succeed(
        self, ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]
    ) -> None:
        batch().execute(run.context())
        assert closing_lines(capsys) == [LINE]
        run.try_number = 2  # what is on record has no reason of failed rows
        batch().execute(run.context())
        assert closing_lines(capsys) == [LINE.replace(" (engine: it broke)", "")]
        run.clear()
        die_before("_succeeded", run)
        run.try_number += 1
        batch().execute(run.context())  # adopts the finished job
        assert closing_lines(capsys) == [LINE]

    def test_names_the_run_before(self, ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
        run.returned_before = batch().execute(run.context())
        capsys.readouterr()
        run.clear()
        batch().execute(run.context())
        assert closing_lines(capsys) == [f"{LINE} | last run: 2 ok, 1 failed, 3 min 5 s, 1.50 EUR"]
        # Of the destination itself, if it has one.
        last = LastRun(rows=301, errors=0, seconds=170.4)
        told = Committed(summary=summary().model_copy(update={"last_run": last}))
        ray.script = lambda ray, body: Script(last=[ray.line(body, told)])
        run.clear()
        batch().execute(run.context())
        assert closing_lines(capsys) == [f"{LINE} | last run: 301 ok, 2 min 50 s"]

    @pytest.mark.parametrize(
        ("before", "told"),
        [
            (None, ""),
            ("text", ""),
            ({"rows": "1", "errors": 0}, ""),
            ({"rows": 1, "errors": 0, "seconds": 10**400, "cost": float("nan")}, " | last run: 1 ok"),
        ],
        ids=["none", "text", "no number", "absurd numbers"],
    )
    def test_stands_beside_any_xcom_of_the_run_before(
        self, ray: FakeRay, run: Run, capsys: pytest.CaptureFixture[str], before: Any, told: str
    ) -> None:
        run.returned_before = before
        batch().execute(run.context())
        assert closing_lines(capsys) == [LINE + told]

    def test_leaves_out_what_is_unknown(self, assert_sentences: AssertSentences) -> None:
        assert_sentences(lambda **figures: closing_line(figures))

    def test_failed_lines_are_not_those_of_an_ended_batch(self) -> None:
        figures = {"rows": 2, "errors": 4, "unanswered": 3, "main_failure": "engine: it broke"}
        told = "2 rows ok, 1 failed (engine: it broke), 3 not asked before the batch ended"
        assert closing_line(figures) == told
        assert closing_line({**figures, "unanswered": 4}).count("failed") == 0
        assert failed_rows({**figures, "dead_letter_uri": "/d"}).startswith("1 of 6 rows failed; ")

    def test_cuts_a_long_reason(self) -> None:
        cost = {"rows": 1, "seconds": 2, "cost": 1.234, "currency": "EUR"}
        before = {"rows": 9, "errors": 0, "cost": 0.0, "currency": "EUR"}
        assert closing_line(cost, before) == "1 row ok, 2 s, 1.23 EUR | last run: 9 ok"
        assert closing_line({"rows": 1}, {**cost, "errors": 0}).endswith("last run: 1 ok, 2 s, 1.23 EUR")
        line = closing_line({"rows": 1, "errors": 1, "main_failure": "engine: " + "x" * 999})
        assert len(line) < 200
        assert "more characters])" in line
