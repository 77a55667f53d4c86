# SPDX-License-Identifier: Apache-2.0
"""The driver of a job on a Ray: what it takes from a store, how it ends early, what others see of it."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.run import supervision
from tests.integration.end_to_end.waiting import wait_for
from tests.support.ray_data_page import page_of
from tests.support.ray_processes import coordinators
from tests.support.repeated_task import ROWS, RepeatedTask, answers, rows_of
from tests.support.s3_server import S3Server

_LINE = re.compile(r"^ray_(raybatch_\w+)\{(.*)\} (\S+)$", re.MULTILINE)
_OUTPUT_ROWS = re.compile(r"^ray_data_output_rows\{(.*)\} (\S+)$", re.MULTILINE)
_TAG = re.compile(r'(\w+)="([^"]*)"')


def test_only_changed_rows_are_paid_for(task: RepeatedTask) -> None:
    reuse = {"reuse": str(task.folder / "store")}
    texts = [f"text {number}" for number in range(ROWS)]
    task.input(texts)
    first = task.run(**reuse)
    changed = [f"new {text}" if number % 100 == 7 else text for number, text in enumerate(texts)]
    task.input(changed)
    second = task.run(run_id="r2", **reuse)
    assert answers(second) == {f"r{number}": text for number, text in enumerate(changed)}
    paid = sum(replica.output_tokens for replica in second.replicas)
    assert (task.asked(second), second.counts.reused) == (4, ROWS - 4)
    assert paid <= 0.011 * second.tokens.output + 4
    payers = {row["id"]: row["reused_from"] for row in rows_of(second)}
    assert {payers[f"r{number}"] for number in range(ROWS) if number % 100 != 7} == {first.submission_id}
    assert {payers[f"r{number}"] for number in range(7, ROWS, 100)} == {None}
    # The third run reuses the responses of the second one.
    assert task.asked(task.run(run_id="r3", **reuse)) == 0


def test_imports_are_left_out_of_garbage_collections(task: RepeatedTask, modules: Path) -> None:
    found = 'import gc\n\ndef prompt(row):\n    return "frozen" if gc.get_freeze_count() else "walked"\n'
    (modules / "heaps.py").write_text(found)
    task.input(["row"])
    assert set(answers(task.run(prompt=None, prompt_function="heaps:prompt")).values()) == {"frozen"}


def test_a_stop_keeps_rows_and_no_progress_timeout_is_not_rays(
    tmp_path: Path, ray_here: Any, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own timeout counts finished chunks and would end the job, because the only chunk takes longer."""
    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "execution_no_progress_timeout_s", 1)
    monkeypatch.setattr(supervision, "_PROGRESS_EVERY", 1.0)
    task, slots = RepeatedTask(tmp_path, s3), 20
    texts = [f"text {number}" for number in range(ROWS)]
    task.input(texts)
    slowly = {"engine_args": {"seconds_per_token": 0.5, "max_num_seqs": slots}, "batch_size": 200}
    sentence = task.refused(FailureClass.CANCELLED, **slowly, replicas=1, flush_interval=3, stops=True)
    assert "the job was stopped; " in sentence
    assert context.execution_no_progress_timeout_s == -1
    wait_for("the coordinator's end", lambda: not coordinators(), 60)
    kept = task.kept()
    # What was finished is written, although flush_interval has not passed, and counted.
    assert 0 < int(re.findall(r"; (\d+) of 400 rows are kept, and ", sentence)[0]) <= kept < ROWS
    assert not task.out.list("data")
    manifest = task.run()
    assert answers(manifest, task.out) == {f"r{number}": text for number, text in enumerate(texts)}
    assert task.asked(manifest) == ROWS - kept
    assert task.asked_in_all() <= ROWS + slots  # the rows in the engine's slots are asked again
    assert manifest.counts.resumed == kept


def test_each_node_tells_how_much_memory_it_has(task: RepeatedTask) -> None:
    """Ray's own number is less: what was free when it started."""
    found = cluster_view.most_memory()
    assert found == cluster_view._memory_here()
    assert found > sum(ray.cluster_resources()[name] for name in ("memory", "object_store_memory"))


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


def output_rows(ray: Any, dataset: str) -> dict[str, float]:
    """Return what Ray Data's page takes from Prometheus as rows, by operator."""
    found = _OUTPUT_ROWS.findall(text_of(ray))
    pairs = [(dict(_TAG.findall(tags)), float(value)) for tags, value in found]
    return {tags["operator"]: value for tags, value in pairs if tags["dataset"] == dataset}


def test_prometheus_finds_rows_and_tokens_on_the_node(task: RepeatedTask, ray_here: Any) -> None:
    rows = 40
    task.input([*(f"text {number}" for number in range(rows)), "fail me"])
    asked: dict[str, Any] = {"engine_args": {"fail_pattern": "fail me"}, "max_errors": 1}
    phases = task.run(token="metrics", **asked).timing.phases
    assert list(phases) == [
        "source", "prompt", "nodes", "model", "earlier", "claim", "replica", "import", "engine", "rows"
    ]  # fmt: skip
    assert [event.text() for event in task.events if "first request after" in event.text()]
    expected = {
        "raybatch_rows_total": rows + 1,
        "raybatch_failed_rows_total": 1,
        "raybatch_input_tokens_total": 2 * rows,
        "raybatch_output_tokens_total": 2 * rows,
    }

    page = page_of("nightly.label_")
    operator = "MapBatches(Replica(nightly:label))_1"
    shows = {"progress": rows + 1, "total": rows + 1, "total_rows": rows + 1, "state": "FINISHED"}
    assert page.items() >= shows.items()
    assert page["operators"][operator].items() >= shows.items()
    of_ray_data = {"Input_0": 0.0, operator: rows + 1.0}  # it adds them up

    def shown() -> tuple[dict[str, float], dict[str, float]]:
        found = scraped(ray_here, "raybatch-metrics-0")
        return {name: value for name, value in found.items() if value}, output_rows(ray_here, page["name"])

    # Ray sends the last numbers some seconds late, and drops them some seconds after their process has ended.
    wanted = expected, of_ray_data
    assert wait_for("all metrics", lambda: shown() == wanted, 60, lambda: str(shown()), pause=0.2)

    again = task.run(token="cleared", **asked, max_row_attempts=1)
    assert again.counts.resumed == rows
    assert list(again.timing.phases) == ["source", "prompt", "nodes", "model", "earlier", "claim"]
    assert [event.text() for event in task.events if "no engine was needed; checks took" in event.text()]
