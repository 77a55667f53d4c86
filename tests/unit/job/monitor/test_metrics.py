# SPDX-License-Identifier: Apache-2.0
"""What replicas count in Ray's own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import ray.util.metrics

from airflow_provider_raybatch.contract.submission import Submission, TaskKey
from airflow_provider_raybatch.job.monitor.metrics import Metrics
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from tests.support.replicas import Place, do, lines

SUBMISSION = Submission(
    task=TaskKey(dag_id="nightly", run_id="r1", task_id="label"), run_token="t", submission_id="raybatch-x-0"
)


class Meter:
    """Stands for one of Ray's metrics: it records values, and is as strict as Ray's own."""

    shown: ClassVar[dict[str, float]] = {}
    tags: ClassVar[dict[str, Mapping[str, str]]] = {}

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] = ()) -> None:
        assert description
        self._name, self._keys = name, tag_keys

    def set_default_tags(self, tags: Mapping[str, str]) -> Meter:
        assert set(tags) == set(self._keys)
        self.tags[self._name] = tags
        return self


class Counter(Meter):
    def inc(self, value: float) -> None:
        if value <= 0:
            raise ValueError(f"value must be >0, got {value}")
        self.shown[self._name] = self.shown.get(self._name, 0) + value


class Gauge(Meter):
    def set(self, value: float) -> None:
        self.shown[self._name] = value


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return what a scrape would find."""
    Meter.shown, Meter.tags = {}, {}
    monkeypatch.setattr(ray.util.metrics, "Counter", Counter)
    monkeypatch.setattr(ray.util.metrics, "Gauge", Gauge)
    return Meter.shown


def test_counters_are_the_sums_of_the_latest_report(shown: dict[str, float]) -> None:
    metrics = Metrics(SUBMISSION, "replica-1")
    report = ReplicaProgress("replica-1", "node")
    metrics.update(report, 0)
    assert shown == {"raybatch_rows_in_flight": 0}
    report.written, report.errors, report.input_tokens, report.output_tokens = 10, 1, 200, 300
    metrics.update(report, 5)
    metrics.update(report, 5)
    report.written, report.output_tokens = 12, 340
    metrics.update(report, 3)
    assert shown == {
        "raybatch_rows_total": 12,
        "raybatch_failed_rows_total": 1,
        "raybatch_input_tokens_total": 200,
        "raybatch_output_tokens_total": 340,
        "raybatch_rows_in_flight": 3,
    }
    tags = {"dag_id": "nightly", "task_id": "label", "submission_id": "raybatch-x-0", "replica": "replica-1"}
    assert all(found == tags for found in Meter.tags.values())


def test_a_replica_counts_what_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, float]
) -> None:
    place = Place(tmp_path, monkeypatch)
    place.source.write_text(lines({"text": "two words"}, {"text": None}, {"text": "one more row"}))
    do(place, place.replica())
    assert shown == {
        "raybatch_rows_total": 3,
        "raybatch_failed_rows_total": 1,
        "raybatch_input_tokens_total": 5,
        "raybatch_output_tokens_total": 5,
        "raybatch_rows_in_flight": 0,
    }


def fail(*args: object) -> None:
    raise RuntimeError("no metrics here")


@pytest.mark.parametrize(("owner", "name"), [(Gauge, "set"), (ray.util.metrics, "Counter")])
def test_a_ray_whose_metrics_fail_fails_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: dict[str, float], owner: object, name: str
) -> None:
    """Neither a metric that can't be created nor one that can't be increased."""
    monkeypatch.setattr(owner, name, fail)
    place = Place(tmp_path, monkeypatch)
    place.source.write_text(lines({"text": "a"}))
    assert len(do(place, place.replica())) == 1


def test_metrics_of_ray_itself_take_what_is_counted() -> None:
    """Names, tags and values pass Ray's own checks, also in a process outside of a cluster."""
    task = TaskKey(dag_id="tägliche_berichte", run_id="r 日本", task_id="größe")
    for submission in (SUBMISSION, SUBMISSION.model_copy(update={"task": task})):
        metrics = Metrics(submission, "replica-1")
        metrics.update(ReplicaProgress("replica-1", "node", written=3, errors=1, output_tokens=7), 2)
        assert metrics.is_on
