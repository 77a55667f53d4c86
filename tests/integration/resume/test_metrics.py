# SPDX-License-Identifier: Apache-2.0
"""The metrics that Prometheus finds on a Ray node after a job."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest

from tests.integration.end_to_end.waiting import wait_for
from tests.support.ray_data_page import page_of
from tests.support.repeated_task import RepeatedTask

_LINE = re.compile(r"^ray_(raybatch_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_OUTPUT_ROWS = re.compile(r"^ray_data_output_rows\{(.*)\} (\S+)$", re.MULTILINE)
_TAG = re.compile(r'(\w+)="([^"]*)"')
ROWS = 40


def text_of(ray: Any) -> str:
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        text: str = answer.read().decode()
    return text


def scraped(ray: Any, submission_id: str) -> dict[str, float]:
    """Return the metrics by name, without Ray's prefix."""
    return {
        name: float(value)
        for name, tags, value in _LINE.findall(text_of(ray))
        if f'submission_id="{submission_id}"' in tags and 'dag_id="nightly"' in tags
    }


def rows_of(ray: Any, dataset: str) -> dict[str, float]:
    """Return what Ray Data's page takes from Prometheus as rows, by operator."""
    found = _OUTPUT_ROWS.findall(text_of(ray))
    pairs = [(dict(_TAG.findall(tags)), float(value)) for tags, value in found]
    return {tags["operator"]: value for tags, value in pairs if tags["dataset"] == dataset}


@pytest.mark.turn(0, 2, 4, 6)
def test_prometheus_finds_rows_and_tokens_on_the_node(task: RepeatedTask, ray_here: Any) -> None:
    task.input([*(f"text {number}" for number in range(ROWS)), "fail me"])
    task.run(token="metrics", engine_args={"fail_pattern": "fail me"}, max_errors=1)
    expected = {
        "raybatch_rows_total": ROWS + 1,
        "raybatch_failed_rows_total": 1,
        "raybatch_input_tokens_total": 2 * ROWS,
        "raybatch_output_tokens_total": 2 * ROWS,
    }

    page = page_of("nightly.label_")
    operator = "MapBatches(Replica(nightly:label))_1"
    rows = {"progress": ROWS + 1, "total": ROWS + 1, "total_rows": ROWS + 1, "state": "FINISHED"}
    assert page.items() >= rows.items()
    assert page["operators"][operator].items() >= rows.items()
    of_ray_data = {"Input_0": 0.0, operator: ROWS + 1.0}  # it adds them up

    def shown() -> tuple[dict[str, float], dict[str, float]]:
        found = scraped(ray_here, "raybatch-metrics-0")
        return {name: value for name, value in found.items() if value}, rows_of(ray_here, page["name"])

    # Ray sends the last numbers some seconds late, and drops them some seconds after their process has ended.
    wanted = expected, of_ray_data
    assert wait_for("all metrics", lambda: shown() == wanted, 60, lambda: str(shown()), pause=0.2)


@pytest.mark.turn(1, 3, 5, 7)
def test_the_seconds_of_a_start_are_told_by_phase(task: RepeatedTask) -> None:
    task.input(["one"])
    phases = task.run().timing.phases
    assert list(phases) == [
        "source", "prompt", "nodes", "model", "earlier", "claim", "replica", "import", "engine", "rows"
    ]  # fmt: skip
    assert [event.text() for event in task.events if "first request after" in event.text()]
    again = task.run(token="cleared")
    assert again.counts.resumed == 1
    assert list(again.timing.phases) == ["source", "prompt", "nodes", "model", "earlier", "claim"]
    assert [event.text() for event in task.events if "no engine was needed; checks took" in event.text()]
