# SPDX-License-Identifier: Apache-2.0
"""A cluster on another Python than Airflow's."""

from __future__ import annotations

import sys
from contextlib import closing

import pytest

from airflow_provider_raybatch.dataset import open_dataset

from .conftest import connect
from .inputs import batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough("a cluster of another Python through Airflow; test_cluster_shipping runs always"),
]


@pytest.fixture(scope="module")
def other_jobs(api, other_python_ray_cluster):
    with closing(connect(api, "ray_other_python", other_python_ray_cluster)) as jobs:
        yield jobs


def test_batch(api, other_jobs, tmp_path):
    conf = batch(tmp_path, map(str, range(20)), ray_conn_id="ray_other_python")
    task = api.trigger("batch_deferrable", **conf).wait(timeout=180).task("infer")
    dataset = open_dataset(task.xcom())
    assert dataset.to_arrow().num_rows == 20
    ours = "{}.{}.".format(*sys.version_info)
    assert not dataset.manifest.versions["python"].startswith(ours)
    (job,) = other_jobs.of(task)
    assert job["status"] == "SUCCEEDED"
