# SPDX-License-Identifier: Apache-2.0
"""Names and rows on Ray's dashboard, whatever Ray's executor looks like."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle

from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.run.pipeline import DatasetPage, name_of, of_task

NAME = "nightly.label"


def submission(**task: Any) -> Submission:
    whole = {"dag_id": "nightly", "run_id": "r", "task_id": "label", **task}
    return Submission.model_validate({"task": whole, "run_token": "t", "submission_id": "s"})


class Operator:
    def __init__(self) -> None:
        self.metrics = SimpleNamespace(row_outputs_taken=1)


class StreamingExecutor(threading.Thread):
    """Stands for Ray Data's, with the state that it reports of two operators."""

    def __init__(self, dataset_id: str) -> None:
        super().__init__(daemon=True)
        self._dataset_id = dataset_id
        self._topology = {Operator(): None, Operator(): None}
        self.over = threading.Event()
        self.reports: list[dict[str, Any]] = []

    def run(self) -> None:
        self.over.wait(60)

    def _get_state_dict(self, state: str) -> dict[str, Any]:
        tickets = {"progress": 1, "total": 2, "total_rows": 2}
        return {"state": state, **tickets, "operators": {"Input_0": tickets, "MapBatches(x)_1": tickets}}

    def _update_stats_metrics(self, state: str, force_update: bool = False) -> None:
        self.reports.append(self._get_state_dict(state=state))

    @property
    def counted(self) -> list[int]:
        return [operator.metrics.row_outputs_taken for operator in self._topology]


@pytest.fixture
def executor() -> Iterator[StreamingExecutor]:
    started = StreamingExecutor(f"{NAME}_0354m7JkRoluTeH5BGIeFi_0")
    started.start()
    yield started
    started.over.set()


def test_rows_replace_tickets_on_the_page(executor: StreamingExecutor) -> None:
    page = DatasetPage(NAME)
    page.show(1536, 4000)
    executor._update_stats_metrics("RUNNING")
    (report,) = executor.reports
    rows = {"progress": 1536, "total": 4000, "total_rows": 4000}
    assert report.items() >= {"state": "RUNNING", **rows}.items()
    assert report["operators"] == {
        "Input_0": {"progress": 1, "total": 2, "total_rows": 2},
        "MapBatches(x)_1": rows,
    }
    assert executor.counted == [0, 1536]  # for Prometheus
    page.show(2000, 4000)
    assert len(executor.reports) == 1  # Ray reports when it wants to


def test_last_rows_follow_rays_last_report(executor: StreamingExecutor) -> None:
    """The replicas' tickets may return before the driver has looked at their last rows."""
    page = DatasetPage(NAME)
    page.show(3900, 4000)
    executor._update_stats_metrics("FINISHED")
    for _ in range(3):
        page.show(4000, 4000)
    assert [(one["state"], one["progress"]) for one in executor.reports] == [
        ("FINISHED", 3900),
        ("FINISHED", 4000),
    ]


def test_page_is_of_this_dataset_alone(executor: StreamingExecutor) -> None:
    DatasetPage("nightly").show(5, 9)
    DatasetPage("nightly.lab").show(5, 9)
    executor._update_stats_metrics("RUNNING")
    assert executor.reports[0]["progress"] == 1


@pytest.mark.parametrize("missing", ["operators", "_topology", "_update_stats_metrics"])
def test_another_executor_costs_the_page_and_nothing_else(
    executor: StreamingExecutor, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "operators":
        monkeypatch.setattr(StreamingExecutor, "_get_state_dict", lambda self, state: {"state": state})
    elif missing == "_topology":
        del executor._topology
    else:
        monkeypatch.delattr(StreamingExecutor, missing)
    page = DatasetPage(NAME)
    page.show(5, 9)
    assert executor._get_state_dict(state="FINISHED")["state"] == "FINISHED"
    page.show(6, 9)
    assert page.is_on is False
    assert executor._get_state_dict("FINISHED")["state"] == "FINISHED"


def test_an_executor_that_reports_otherwise_is_left_alone(
    executor: StreamingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(StreamingExecutor, "_get_state_dict")
    page = DatasetPage(NAME)
    page.show(5, 9)
    assert (page.is_on, hasattr(executor, "_get_state_dict")) == (False, False)


def test_rays_own_arguments_are_passed_on(
    executor: StreamingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(StreamingExecutor, "_get_state_dict", lambda self, *a, **k: asked.append((a, k)))
    DatasetPage(NAME).show(5, 9)
    executor._get_state_dict("RUNNING", verbose=True)  # type: ignore[call-arg]
    assert asked == [(("RUNNING",), {"verbose": True})]


def test_page_keeps_no_executor_alive(executor: StreamingExecutor) -> None:
    """Its actors hold GPUs."""
    other = StreamingExecutor("other.label_1")
    other.start()
    page = DatasetPage("other.label")
    page.show(1, 2)
    other.over.set()
    other.join()
    found = weakref.ref(other)
    gc.disable()
    try:
        del other
        assert found() is None
    finally:
        gc.enable()
    page.show(2, 2)
    assert page.is_on


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ({}, "nightly.label"),
        ({"map_index": 3}, "nightly.label.3"),
        ({"task_id": "group.label"}, "nightly.group.label"),
        ({"dag_id": "tägliche_berichte"}, "tagliche_berichte.label"),
        ({"dag_id": "日報"}, "u65e5u5831.label"),
        ({"dag_id": "a'); \"DROP\n{}", "task_id": "->[x]"}, "a_____DROP___.-__x_"),
        ({"dag_id": "é" * 250, "task_id": "日" * 250}, f"{'e' * 80}.{('u65e5' * 12)}"),
    ],
)
def test_names_are_short_and_plain(task: dict[str, Any], name: str) -> None:
    assert name_of(submission(**task)) == name
    assert name_of(None) == "batch_inference"


def test_actor_is_named_after_its_task() -> None:
    found = of_task(Coordinator, submission(task_id="group.label", map_index=3))
    assert found.__name__ == "Coordinator(nightly:group:label:3)"
    assert issubclass(found, Coordinator)
    assert found.__doc__ == Coordinator.__doc__
    assert pickle.loads(cloudpickle.dumps(found)).__name__ == found.__name__
