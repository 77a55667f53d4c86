# SPDX-License-Identifier: Apache-2.0
"""A user's columns, from the function in the DAG file's folder to the dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .inputs import batch
from .ray_jobs import RayJobs
from .rest import AirflowApi

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("functions through Airflow; test_cluster_shipping runs always"),
]

TEXTS = [*(f"company {number}" for number in range(40)), "company without a number"]


def test_function_columns_beside_the_renamed_response(api: AirflowApi, jobs: RayJobs, tmp_path: Path) -> None:
    conf = batch(tmp_path, TEXTS, sampling={"temperature": 0})
    result = api.trigger("labelled", **conf).wait(timeout=240).task("infer").xcom()
    dataset = open_dataset(result)
    rows = {row["text"]: row for row in dataset.to_arrow().to_pylist()}
    assert (len(rows), result["rows"], result["errors"]) == (40, 40, 1)
    assert len(dataset.files) == 4  # files of ten rows each; the failed row is in none
    assert {row["inferred_industry"] for row in rows.values()} == {f"Say {text}" for text in TEXTS[:-1]}
    assert all(row["same"] for row in rows.values())
    # Halves and whole numbers: one type for all files.
    assert rows["company 3"]["number"] == rows["company 6"]["number"] == 3.0
    columns = {column.name: column.type for column in dataset.manifest.columns}
    assert (columns["number"], columns["same"]) == ("double", "bool")
