# SPDX-License-Identifier: Apache-2.0
"""Requests to a vLLM engine, and the kept parts of its answers: one job on two CPUs, a question a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_provider_raybatch.dataset import Dataset, open_dataset

from .conftest import EXAMPLES
from .lake import BUCKET, Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = EXAMPLES / "demo_model/model"
INDUSTRY = {"role": "user", "content": "What industry is this company in: Redwood Dairy Farms"}
SUM = {"role": "user", "content": "What is 3 + 4?"}
JSON_ONLY = {"role": "system", "content": "Answer in JSON."}
CHOICES = ["Zebra", "Yak"]  # which the model would never generate by itself
# The branches differ in type and in keywords, which Arrow would merge if it saw them.
ANY_OF = {
    "type": "object",
    "properties": {
        "industry": {
            "anyOf": [
                {"type": "string", "enum": CHOICES},
                {"type": "integer", "minimum": 3, "maximum": 5},
            ]
        }
    },
    "required": ["industry"],
    "additionalProperties": False,
}
QUESTIONS: dict[str, tuple[list[dict[str, str]], Any]] = {
    "three": ([INDUSTRY], {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 24}),
    "stop": ([SUM], {"temperature": 0, "max_tokens": 24}),
    "length": ([INDUSTRY], {"temperature": 0, "max_tokens": 1}),
    "choice": ([INDUSTRY], {"temperature": 0, "structured_outputs": {"choice": CHOICES}}),
    "any_of": ([JSON_ONLY, INDUSTRY], {"temperature": 0, "structured_outputs": {"json": ANY_OF}}),
    "any_of_text": ([JSON_ONLY, SUM], json.dumps({"structured_outputs": {"json": ANY_OF}, "seed": 1})),
    "default": ([SUM], None),
    "long_a": ([{"role": "user", "content": "why " * 120 + "A"}], {"temperature": 0, "max_tokens": 1}),
    "long_b": ([{"role": "user", "content": "why " * 120 + "B"}], {"temperature": 0, "max_tokens": 1}),
    "empty": ([], {"temperature": 0}),
    "too_long": ([{"role": "user", "content": "why " * 1200}], None),
}


@pytest.fixture(scope="module")
def dataset(api: AirflowApi, jobs: RayJobs, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("chat")
    source = folder / "chats.jsonl"
    rows = [
        {"name": name, "messages": messages, "sampling": sampling}
        for name, (messages, sampling) in QUESTIONS.items()
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = api.trigger("chat", source=str(source), destination=f"{folder}/out", model=str(MODEL))
    run.wait(timeout=420)
    return open_dataset(run.task("infer").xcom())


@pytest.fixture(scope="module")
def answers(dataset: Dataset) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in dataset.to_arrow().to_pylist()}


@pytest.fixture(scope="module")
def dead_letters(dataset: Dataset) -> dict[str, dict[str, Any]]:
    folder = Path(dataset.manifest.dead_letter_uri or "")
    lines = [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]
    letters = [json.loads(line) for line in lines]
    return {letter["row"]["name"]: letter for letter in letters}


def test_rows_without_an_answer_leave_the_others_alone(dataset, answers, dead_letters):
    assert set(answers) | set(dead_letters) == set(QUESTIONS)
    assert set(dead_letters) == {"empty", "too_long"}
    assert "no message" in dead_letters["empty"]["reason"]
    assert "512" in dead_letters["too_long"]["reason"]
    counts = dataset.manifest.counts
    assert (counts.ok, counts.error) == (len(answers), 2)


def test_three_completions_are_kept(dataset, answers):
    row = answers["three"]
    assert len(row["completions"]) == 3
    assert row["response"] == row["completions"][0]["text"]
    assert row["output_tokens"] == sum(one["output_tokens"] for one in row["completions"])
    assert {len(answers[name]["completions"]) for name in answers if name != "three"} == {1}
    assert sum(dataset.manifest.finish_reasons.values()) == len(answers) + 2


def test_finish_reasons(dataset, answers):
    assert answers["stop"]["finish_reason"] == "stop"
    assert answers["stop"]["response"].strip() == "7"
    assert answers["length"]["finish_reason"] == "length"
    assert answers["length"]["output_tokens"] == 1
    reasons = [one["finish_reason"] for row in answers.values() for one in row["completions"]]
    assert dataset.manifest.finish_reasons == {reason: reasons.count(reason) for reason in set(reasons)}


def test_tokens_of_a_shared_beginning_are_counted_as_cached(dataset, answers):
    tokens = dataset.manifest.tokens
    assert 0 < tokens.cached <= answers["long_a"]["input_tokens"]
    assert tokens.input == sum(row["input_tokens"] for row in answers.values())


def test_structured_output_reaches_the_engine_unchanged(answers):
    assert answers["choice"]["response"] in CHOICES
    for name in ("any_of", "any_of_text"):
        value = json.loads(answers[name]["response"])
        jsonschema.validate(value, ANY_OF)
        assert answers[name]["response"] == json.dumps(value, ensure_ascii=False), (
            "white space between values"
        )


@pytest.mark.thorough("a model in a bucket through Airflow; unit/job/preflight runs always")
def test_a_model_in_a_bucket_answers_as_its_folder_does(
    api: AirflowApi, jobs: RayJobs, lake: Lake, dataset: Dataset, answers: dict[str, Any], tmp_path: Path
) -> None:
    """vLLM streams the weights; the nodes' identity comes with the job here."""
    for file in MODEL.iterdir():
        lake.client().put_object(Bucket=BUCKET, Key=f"models/demo/{file.name}", Body=file.read_bytes())
    source = tmp_path / "chats.jsonl"
    source.write_text(json.dumps({"messages": QUESTIONS["stop"][0], "sampling": QUESTIONS["stop"][1]}) + "\n")
    identity = {
        **lake.environment,
        "AWS_DEFAULT_REGION": "us-east-1",
        "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
    }
    run = api.trigger(
        "chat",
        source=str(source),
        destination=f"{tmp_path}/out",
        model=f"s3://{BUCKET}/models/demo",
        runtime_env={"env_vars": identity},
    )
    found = open_dataset(run.wait(timeout=240).task("infer").xcom())
    assert found.to_arrow()["response"].to_pylist() == [answers["stop"]["response"]]
    assert found.manifest.digests.model not in {"", dataset.manifest.digests.model}
