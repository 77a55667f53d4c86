# SPDX-License-Identifier: Apache-2.0
"""The example workflows through a real Airflow, two nights each, from S3 to S3, with the engine `echo`.

What their tasks make of data is shown by the unit tests; here, how tasks, XComs, assets and batch inferences
fit together, what a second night pays, and what a candidate does that can't be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.workflows.rows import Rows

from .assets import event_of, run_after
from .conftest import EXAMPLES
from .lake import Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi
from .stack import AirflowStack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPICS = 20
CANDIDATES = {"old": {"model": "echo"}, "new": {"model": "echo", "sampling": {"max_tokens": 3}}}
BROKEN = {**CANDIDATES, "broken": {"model": "echo", "sampling": {"n": -1}}}


@pytest.fixture(scope="module")
def show(airflow: AirflowStack, api: AirflowApi, jobs: RayJobs, lake: Lake) -> Callable[..., None]:
    """Put the data into the lake, and let the DAG files see their settings."""
    lake.connect(api, "lake")
    for path in (EXAMPLES / "data").rglob("*.jsonl"):
        put(lake, str(path.relative_to(EXAMPLES / "data")), path.read_bytes())
    lines = (EXAMPLES / "data/topics.jsonl").read_bytes().splitlines(keepends=True)
    put(lake, "topics.jsonl", b"".join(lines[:TOPICS]))
    api.unpause("report_on_questions")  # a paused DAG takes no notice of events
    api.unpause("use_promoted_model")

    def show(**settings: str) -> None:
        example = {
            "SOURCE": "s3://lake/topics.jsonl",
            "OUTPUT": "s3://lake/questions",
            "WAREHOUSE": str(airflow.home / "workflows.duckdb"),
            "DOCUMENTS": "s3://lake/documents",
            "CORPUS": "s3://lake/corpus",
            "BENCHMARK": "s3://lake/questions.jsonl",
            "EVALUATION": "s3://lake/evaluation",
            "CANDIDATES": json.dumps(CANDIDATES),
            "MODEL": "echo",
            "ENGINE": "echo",
            "AWS_CONN_ID": "lake",
            **settings,
        }
        airflow.show_dags({f"RAYBATCH_EXAMPLE_{name}": value for name, value in example.items()})

    return show


@pytest.fixture(autouse=True)
def as_airflow(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> None:
    """The connection as this process, which is no part of the stack, finds it."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", **lake.connection()}))


def put(lake: Lake, key: str, content: bytes) -> None:
    lake.client().put_object(Bucket="lake", Key=key, Body=content)


def rows_of(result: Any) -> list[dict[str, Any]]:
    return list(Rows(result, aws_conn_id="lake").rows())


def card_of(lake: Lake, result: dict[str, Any]) -> dict[str, Any]:
    key = result["card_uri"].removeprefix("s3://lake/")
    card: dict[str, Any] = json.loads(lake.client().get_object(Bucket="lake", Key=key)["Body"].read())
    return card


def test_synthetic_data(show: Callable[..., None], api: AirflowApi, lake: Lake) -> None:
    """The echo of the first request is no JSON, so that every answer is repaired."""
    show()
    first = api.first_run("nightly_synthetic_data").wait(timeout=400)
    second = api.trigger("nightly_synthetic_data").wait(timeout=400)
    accepted = [run.task("accept").xcom() for run in (first, second)]
    cards = [card_of(lake, one) for one in accepted]
    left = {step["step"]: step["rows"] for step in cards[0]["funnel"]}
    asked = 2 * 2 * TOPICS
    assert (left["input"], left["schema"], left["repair"]) == (asked, 0, asked)
    assert accepted[0]["rows"] > 0
    assert first.task("load").xcom() == accepted[0]["rows"] == left["score_threshold"]
    rejected = rows_of(accepted[0]["rejected"])
    assert len(rejected) + accepted[0]["rows"] == asked
    assert all(row["rule"] and row["reason"] for row in rejected)
    # The echo says on the second night what it said on the first.
    assert accepted[1]["rows"] < accepted[0]["rows"]
    assert second.task("repair").xcom()["reused"] == second.task("repair").xcom()["rows"]
    assert {"accepted_earlier"} <= {row["rule"] for row in rows_of(accepted[1]["rejected"])}
    (told,) = run_after(first, "load").wait().task("report").xcom()
    assert told["rows"] == accepted[0]["rows"]


def test_curation_pays_for_what_is_new(show: Callable[..., None], api: AirflowApi, lake: Lake) -> None:
    show()
    first = api.first_run("data_curation").wait(timeout=400)
    curated = first.task("curate").xcom()
    funnel = {step["step"]: step for step in card_of(lake, curated)["funnel"]}
    assert funnel["input"]["rows"] == 2000
    assert len(rows_of(curated["dropped"])) + curated["rows"] == 2000
    assert funnel["near_duplicates"]["dropped"]["near_duplicate"] >= 97
    assert event_of(first, "curate")["extra"]["manifest_uri"] == curated["manifest_uri"]
    prefixes = {key.split("/")[4] for key in lake.contents(curated["key_prefix"])}
    assert prefixes == {"language=en"}

    sentence = "On day {} the visitors of the museum asked about another painting."
    lake.write_rows("documents/new.jsonl", [{"text": " ".join(sentence.format(n) for n in range(4))}])
    second = api.trigger("data_curation", min_quality=4).wait(timeout=400)
    labelled = second.task("label").xcom()
    assert labelled["rows"] - labelled["reused"] - labelled["duplicates"] == 1
    assert second.task("curate").xcom()["rows"] < curated["rows"]


def test_a_tie_is_held_and_a_broken_candidate_reported(
    show: Callable[..., None], api: AirflowApi, lake: Lake
) -> None:
    show(CANDIDATES=json.dumps(BROKEN))
    run = api.first_run("model_evaluation").wait(timeout=400)
    compared = run.task("compare").xcom()
    assert compared["promoted"] is None
    assert "broken failed (it answered 0 of 300 questions)" in compared["reason"]
    assert set(compared["pairwise"]) == {"new"}
    assert (run.task("hold").state, run.task("promote").state) == ("success", "skipped")
    assert [task.state for task in run.tasks() if task.task_id == "answer"].count("failed") == 1
    page = lake.contents(compared["html_uri"].removeprefix("s3://lake/"))
    assert b"data:image/png;base64," in next(iter(page.values()))


def test_the_better_model_is_promoted(show: Callable[..., None], api: AirflowApi, lake: Lake) -> None:
    """The known answer is the question, which the echo of `new` cuts, and that of `old` does not."""
    lines = [json.loads(line) for line in (EXAMPLES / "data/questions.jsonl").read_text().splitlines()]
    lake.write_rows("echoes.jsonl", ({**line, "answer": line["question"]} for line in lines))
    greedy = {"temperature": 0, "n": 4}
    better = {
        "cut": {"model": "echo", "sampling": {**greedy, "max_tokens": 3}},
        "whole": {"model": "echo", "sampling": greedy},
    }
    show(BENCHMARK="s3://lake/echoes.jsonl", CANDIDATES=json.dumps(better))
    run = api.trigger("model_evaluation").wait(timeout=400)
    assert run.task("promote").xcom()["name"] == "whole"
    assert run.task("hold").state == "skipped"
    assert event_of(run, "promote")["extra"]["name"] == "whole"
    assert run_after(run, "promote").wait().task("announce").xcom()[0].startswith("Promote whole")
