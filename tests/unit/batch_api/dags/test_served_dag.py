# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import BundleDagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raybatch.batch_api.dags import serve_batches
from airflow_provider_raybatch.contract.failures import SpecError

ONE_LINE = "from airflow_provider_raybatch.batch_api.dags import serve_batches; dags = serve_batches()\n"
MODELS: dict[str, Any] = {
    "small": {"engine": "echo", "keep_warm": 60},
    "org/large": {
        "model": "org/large", "dag_id": "large", "batches_at_once": 3, "retries": 5, "pool": "gpus",
        "ray_cluster": {"image": "rayproject/ray:2.56.0", "accelerator_type": "H100"},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, MODELS)


def configure(monkeypatch: pytest.MonkeyPatch, models: Any) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", json.dumps(models))


def read(folder: Path, text: str) -> Any:
    """What Airflow finds in a DAG file; its safe mode skips files that look like something else."""
    (folder / "served.py").write_text(text)
    return BundleDagBag(folder, bundle_path=folder, bundle_name="tests", safe_mode=True)


def test_one_line_makes_a_dag_for_each_model(tmp_path: Path) -> None:
    bag = read(tmp_path, ONE_LINE)

    assert not bag.import_errors
    assert set(bag.dags) == {"batches_small", "large", "batches_sweep"}
    assert {dag.fileloc for dag in bag.dags.values()} == {str(tmp_path / "served.py")}
    assert {dag.relative_fileloc for dag in bag.dags.values()} == {"served.py"}


def test_a_dag_runs_batches_of_one_model_in_turn(tmp_path: Path) -> None:
    dags = read(tmp_path, ONE_LINE).dags
    small, large = dags["batches_small"], dags["large"]

    assert (small.max_active_runs, large.max_active_runs) == (1, 3)
    assert (small.schedule, small.catchup, small.is_paused_upon_creation) == (None, False, False)
    assert (small.tasks[0].retries, large.tasks[0].retries) == (288, 5)
    assert large.tasks[0].pool == "gpus"
    assert small.tasks[0].retry_delay == timedelta(minutes=1)
    assert (small.tasks[0].task_id, small.tasks[0].served_model_name) == ("answer", "small")


def test_served_dags_can_be_serialised(tmp_path: Path) -> None:
    for dag in read(tmp_path, ONE_LINE).dags.values():
        text = json.dumps(DagSerialization.to_dict(dag))
        assert DagSerialization.from_dict(json.loads(text)).dag_id == dag.dag_id


def test_a_file_of_a_team_has_its_models_alone(tmp_path: Path) -> None:
    bag = read(
        tmp_path,
        "from airflow_provider_raybatch.batch_api.dags import serve_batches\n"
        "dags = serve_batches(['org/large'], tags=['team'], default_args={'owner': 'ann'})\n",
    )

    (dag,) = bag.dags.values()
    assert (dag.dag_id, dag.tags, dag.tasks[0].owner) == ("large", {"team"}, "ann")


def test_the_sweep_can_be_had_or_left_out() -> None:
    assert [dag.dag_id for dag in serve_batches(["small"], sweep=True)] == ["batches_small", "batches_sweep"]
    assert [dag.dag_id for dag in serve_batches(sweep=False)] == ["batches_small", "large"]


def test_a_wrong_configuration_is_an_import_error_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, {"small": {"engin": "echo"}})
    (tmp_path / "other.py").write_text("from airflow.sdk import DAG\nDAG('other', schedule=None)\n")

    bag = read(tmp_path, ONE_LINE)

    assert not bag.dags.keys() & {"batches_small", "batches_sweep"}
    (error,) = bag.import_errors.values()
    assert "[raybatch] batch_api_models: model 'small': engin: it is neither" in error


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"models": ["lage"]},
            "'lage' is not in .raybatch. batch_api_models, where 'small', 'org/large'",
        ),
        ({"models": "small"}, r"models must be a list of names; write \['small'\]"),
        ({"schedule": "@daily"}, "schedule is set for the batches of a model; leave it out"),
    ],
)
def test_a_mistake_in_the_call_is_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        serve_batches(**arguments)


def test_rendering_leaves_the_configuration_as_it_is(tmp_path: Path) -> None:
    task = read(tmp_path, ONE_LINE).dags["large"].tasks[0]
    task.ray_cluster.image = "another"

    again = read(tmp_path, ONE_LINE).dags["large"].tasks[0]

    assert again.ray_cluster.image == "rayproject/ray:2.56.0"


def test_reading_the_file_loads_no_heavy_packages(tmp_path: Path) -> None:
    """Airflow reads it every half minute, and in each task."""
    code = (
        f"{ONE_LINE}import sys; heavy = {{'pyarrow', 'ray', 'obstore', 'fastapi', 'boto3', 'botocore'}}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"
