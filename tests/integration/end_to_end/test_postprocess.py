# SPDX-License-Identifier: Apache-2.0
"""A user's columns, from the DAG file's folder to the dataset, and again with another function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import Dataset, open_dataset
from tests.support.engine_log import engines

from .inputs import batch
from .ray_jobs import RayJobs
from .rest import AirflowApi, Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(1)]

TEXTS = [*(f"company {number}" for number in range(40)), "company without a number"]


@dataclass(frozen=True)
class Runs:
    """Runs of the same rows, with one function and then with another.

    :param generated: responses that engines had generated after each of them.
    """

    first: Task
    second: Task
    refused: Task
    generated: tuple[int, int]


@pytest.fixture(scope="module")
def runs(api: AirflowApi, jobs: RayJobs, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("postprocess")
    log = folder / "log"
    conf = batch(folder, TEXTS, engine_args={"request_log": str(log)}, sampling={"temperature": 0})

    def generated() -> int:
        return sum(len(engine.generated) for engine in engines(log))

    first = api.trigger("labelled", **conf).wait(timeout=240).task("infer")
    after_first = generated()
    other = {**conf, "destination": f"{folder}/other", "postprocess": "labels:shout"}
    second = api.trigger("labelled", **other).wait(timeout=240).task("infer")
    after_second = generated()
    wrong = {**conf, "destination": f"{folder}/wrong", "postprocess": "labels:alone"}
    refused = api.trigger("labelled", **wrong).wait("failed", timeout=240).task("infer")
    return Runs(first, second, refused, (after_first, after_second))


def rows_by_text(dataset: Dataset) -> dict[str, dict[str, Any]]:
    return {row["text"]: row for row in dataset.to_arrow().to_pylist()}


def test_function_columns_beside_the_renamed_response(runs: Runs) -> None:
    result = runs.first.xcom()
    dataset = open_dataset(result)
    rows = rows_by_text(dataset)
    assert len(rows) == result["rows"] == 40
    assert len(dataset.files) == 4  # files of ten rows each; the failed row is in none
    assert {row["inferred_industry"] for row in rows.values()} == {f"Say {text}" for text in TEXTS[:-1]}
    assert all(row["same"] for row in rows.values())
    # Halves and whole numbers: one type for all files.
    assert rows["company 3"]["number"] == 3.0
    assert rows["company 6"]["number"] == 3.0
    columns = {column.name: column.type for column in dataset.manifest.columns}
    assert (columns["number"], columns["same"]) == ("double", "bool")


def test_a_row_that_the_function_fails_is_a_dead_letter(runs: Runs) -> None:
    result = runs.first.xcom()
    assert result["errors"] == 1
    (file,) = Path(result["dead_letter_uri"].removeprefix("file://")).iterdir()
    (letter,) = map(json.loads, file.read_text().splitlines())
    assert (letter["ordinal"], letter["step"], letter["response"]) == (40, "postprocess", f"Say {TEXTS[-1]}")
    assert letter["reason"] == "ValueError: invalid literal for int() with base 10: 'number'"


def test_another_function_pays_for_nothing(runs: Runs) -> None:
    assert runs.generated == (41, 41)
    result = runs.second.xcom()
    assert (result["rows"], result["errors"], result["reused"]) == (41, 0, 41)
    rows = rows_by_text(open_dataset(result))
    assert rows["company 7"]["loud"] == "SAY COMPANY 7"
    assert "number" not in rows["company 7"]


def test_function_without_a_response_argument_is_refused(runs: Runs) -> None:
    sentence = (
        "postprocess: 'labels:alone' can't be called with a row and a response (too many positional "
        "arguments); write it as def alone(row, response)."
    )
    assert any(sentence in line for line in runs.refused.log()), runs.refused.log()
    assert runs.refused.read()["try_number"] == 1
