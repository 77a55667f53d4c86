# SPDX-License-Identifier: Apache-2.0
"""What an earlier commit has left is used by this one: nothing that was paid for is asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.module_loading import import_string

from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.dataset.opening import open_dataset
from airflow_provider_raybatch.operators.run_record import RunRecord
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.repeated_task import RepeatedTask
from tests.support.served_batches import Batch
from tests.support.whole_job import without_cluster
from tests.unit.upgrade.making import (
    LAKE,
    LINES,
    OUTCOME,
    PUBLISHED,
    RECORD,
    STATE,
    STEPS,
    WRITTEN,
    moved,
    trigger,
)

NEW = ["new"]


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    moved(STATE, tmp_path / "lake", (LAKE, f"{tmp_path}/lake"))
    without_cluster(monkeypatch)
    return tmp_path / "lake"


@pytest.mark.parametrize(("name", "asked"), [("question", {}), ("steps", {"steps": STEPS})])
class TestTask:
    def test_answers_are_found_by_the_next_run(self, lake: Path, name: str, asked: Any) -> None:
        """Those of a published run, and those of one that died."""
        task = RepeatedTask(lake / name)
        answered = task.kept_requests()
        assert answered > len(PUBLISHED)
        texts = [*PUBLISHED, *WRITTEN, *NEW]
        task.input(texts)
        manifest = task.run("third", **asked)
        assert answered + task.asked(manifest) == len(texts) * len(asked.get("steps", [0]))

    def test_a_dataset_can_be_read(self, lake: Path, name: str, asked: Any) -> None:
        rows = open_dataset(str(lake / name / "out")).to_arrow().to_pylist()
        assert [row["text"] for row in rows] == PUBLISHED

    def test_a_store_answers_another_task(self, lake: Path, name: str, asked: Any) -> None:
        task = RepeatedTask(lake / name)
        task.input(PUBLISHED)
        manifest = task.run("other", run_id="other", reuse=str(lake / name / "store"), **asked)
        assert (task.asked(manifest), manifest.counts.ok) == (0, len(PUBLISHED))


def test_a_batch_goes_on_where_it_stood(lake: Path) -> None:
    batch = Batch(LocalFolder(f"{lake}/batch"), f"{lake}/batch.jsonl")
    summary = batch.run(1)
    assert 0 < summary.resumed < LINES
    assert len(batch.ids()[0]) == LINES


class TestWhatAirflowKeeps:
    @pytest.fixture
    def kept(self) -> dict[str, Any]:
        return json.loads((STATE / "airflow.json").read_text())

    def test_the_record_of_a_run_is_read(self, kept: dict[str, Any]) -> None:
        assert RunRecord.model_validate(kept["record"]) == RECORD

    def test_a_trigger_is_made_of_its_arguments(self, kept: dict[str, Any]) -> None:
        path, arguments = kept["trigger"]
        assert import_string(path)(**arguments).serialize() == trigger().serialize()

    def test_the_event_of_a_trigger_is_read(self, kept: dict[str, Any]) -> None:
        assert Outcome.from_json(kept["outcome"]) == OUTCOME
