# SPDX-License-Identifier: Apache-2.0
"""Curation and evaluation through a real Airflow, from S3 to S3, with the engine `echo`.

Unit tests show what the tasks do with data. These tests show how tasks, XComs, assets and batch inferences
fit together, the cost of a second night, and the effect of a broken candidate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import Rows

from .conftest import EXAMPLES
from .lake import Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi, Run
from .stack import AirflowStack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.thorough("curation and evaluation in a whole Airflow; unit/dags_examples runs always"),
    pytest.mark.usefixtures("as_airflow"),
]

QUESTIONS = 40
GREEDY = {"temperature": 0, "n": 4}
CANDIDATES = {
    "cut": {"model": "echo", "sampling": {**GREEDY, "max_tokens": 3}},
    "whole": {"model": "echo", "sampling": GREEDY},
    "broken": {"model": "echo", "sampling": {"n": -1}},
}
SETTINGS = {
    "DOCUMENTS": "s3://lake/documents",
    "CORPUS": "s3://lake/corpus",
    "BENCHMARK": "s3://lake/questions.jsonl",
    "EVALUATION": "s3://lake/evaluation",
    "CANDIDATES": json.dumps(CANDIDATES),
    "MODEL": "echo",
    "ENGINE": "echo",
    "AWS_CONN_ID": "lake",
}


def questions() -> list[dict[str, Any]]:
    lines = (EXAMPLES / "data/questions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:QUESTIONS]]


def ask(lake: Lake, rows: Iterable[dict[str, Any]]) -> None:
    lake.write_rows("questions.jsonl", rows)


@pytest.fixture(scope="module")
def first_runs(airflow: AirflowStack, api: AirflowApi, jobs: RayJobs, lake: Lake) -> dict[str, Run]:
    """The first run of each DAG; in parallel, because each mostly waits for Ray.

    The known answer is the question itself: the echo of `cut` truncates it, that of `whole` does not.
    """
    lake.connect(api, "lake")
    for path in (EXAMPLES / "data/documents").iterdir():
        lake.client().put_object(Bucket="lake", Key=f"documents/{path.name}", Body=path.read_bytes())
    ask(lake, ({**row, "answer": row["question"]} for row in questions()))
    settings = {f"RAYBATCH_EXAMPLE_{name}": value for name, value in SETTINGS.items()}
    airflow.show_dags(settings, read="model_evaluation")  # it has a task for each candidate
    api.unpause("use_promoted_model")  # events don't start a paused DAG
    return {dag_id: api.first_run(dag_id) for dag_id in ("data_curation", "model_evaluation")}


def test_curation_pays_for_what_is_new(first_runs: dict[str, Run], api: AirflowApi, lake: Lake) -> None:
    first = first_runs["data_curation"].wait(timeout=800)
    curated = first.task("curate").xcom()
    funnel = {step["step"]: step for step in lake.document(curated["card_uri"])["funnel"]}
    assert funnel["input"]["rows"] == 2000
    assert Rows(curated["dropped"], aws_conn_id="lake").count + curated["rows"] == 2000
    assert funnel["near_duplicates"]["dropped"]["near_duplicate"] >= 97
    assert first.task("curate").asset_event()["extra"]["manifest_uri"] == curated["manifest_uri"]
    prefixes = {key.split("/")[4] for key in lake.contents(curated["key_prefix"])}
    assert prefixes == {"language=en"}

    sentence = "On day {} the visitors of the museum asked about another painting."
    lake.write_rows("documents/new.jsonl", [{"text": " ".join(sentence.format(n) for n in range(4))}])
    second = api.trigger("data_curation", min_quality=4).wait(timeout=800)
    labelled = second.task("label").xcom()
    assert labelled["rows"] - labelled["reused"] - labelled["duplicates"] == 1
    assert second.task("curate").xcom()["rows"] < curated["rows"]


def test_the_better_model_is_promoted_and_a_broken_one_reported(
    first_runs: dict[str, Run], lake: Lake
) -> None:
    run = first_runs["model_evaluation"].wait(timeout=800)
    assert [task.state for task in run.tasks() if task.task_id == "answer"].count("failed") == 1
    assert run.task("promote").xcom()["name"] == "whole"
    assert run.task("hold").state == "skipped"
    compared = run.task("compare").xcom()
    assert set(compared["pairwise"]) == {"whole"}
    page = lake.contents(compared["html_uri"].removeprefix("s3://lake/"))
    assert b"<svg" in next(iter(page.values()))
    assert run.task("promote").asset_event()["extra"]["name"] == "whole"
    assert run.task("promote").run_after().wait().task("announce").xcom()[0].startswith("Promote whole")
