# SPDX-License-Identifier: Apache-2.0
"""Operators of other providers for OpenAI's Batch API, unchanged, with our server in their connections.

A part of `make lanes`, for the minutes that its batches take.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .batch_world import REPOSITORY, BatchWorld, chats, text_of
from .rest import Run
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DAG = "openai_operators"
MODES = ("blocking", "deferrable")
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
PACKAGES = REPOSITORY / f".venv-operators/lib/{_VERSION}/site-packages"


@pytest.fixture(scope="module")
def ended(batches: BatchWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run of all operators, in both modes, after its end; Airflow's processes have their packages."""
    if not PACKAGES.exists():
        pytest.skip(f"there is no {PACKAGES}")
    airflow, api = batches.airflow, batches.airflow.api
    path = os.pathsep.join([airflow.environment["PYTHONPATH"], str(PACKAGES)])
    airflow.show_dags({"PYTHONPATH": path})
    airflow.restart("triggerer")
    login = {"host": batches.url, "password": batches.token("ann")}
    api.connection("openai_default", "openai", **login)
    api.connection("pydanticai_default", "pydanticai", **login)
    file_id = batches.upload(text_of(chats("operators")))
    wait_for(
        "the DAG",
        lambda: DAG in {dag["dag_id"] for dag in api.call("GET", "dags", params={"limit": 100})["dags"]},
        60,
        airflow.evidence,
    )
    folder = tmp_path_factory.mktemp("results")
    yield api.trigger(DAG, file_id=file_id, result_path=f"file://{folder}").wait(timeout=300)
    airflow.show_dags({})
    airflow.restart("triggerer")


@pytest.mark.parametrize("mode", MODES)
def test_trigger_operator_succeeds(ended, batches, mode):
    batch_id = ended.task(f"trigger_{mode}").xcom()
    (played,) = batches.play("3-sync", {"it": {"play": "finished", "batch_id": batch_id}}).values()
    assert played["polls"][-1]["status"] == "completed"
    assert len(played["output"]["lines"]) == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["text", "json"])
def test_batch_operator_succeeds(ended, name, mode):
    manifest = ended.task(f"{name}_{mode}").xcom()
    assert manifest["counts"]["succeeded"] == manifest["request_count"] == 3
    found = Path(manifest["result_uri"].removeprefix("file://")).read_text().splitlines()
    rows = sorted((json.loads(row) for row in found), key=lambda row: row["index"])
    assert [row["status"] for row in rows] == ["success"] * 3
    for number, row in enumerate(rows):
        if name == "text":
            assert row["output"].endswith(f"operators text {mode} {number}")
        else:
            assert set(row["output"]) == {"mood", "stars"}


def test_each_task_made_one_batch(ended, batches):
    """Its input was asked once, and the key in its metadata belongs to one batch."""
    (listed,) = batches.play(
        "3-sync", {"it": {"play": "pages", "call": "batches.list", "limit": 100}}
    ).values()
    keys = [
        one["metadata"]["idempotency_key"]
        for one in listed["every"]
        if "input_fingerprint" in (one["metadata"] or {})
    ]
    assert len(keys) == len(set(keys)) == 4
    for name in ("text", "json"):
        for mode in MODES:
            assert len(batches.asked(f"operators {name} {mode}")) == 3
