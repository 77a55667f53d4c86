# SPDX-License-Identifier: Apache-2.0
"""Pages have the settings that Airflow knows, and the bounds of the code."""

from __future__ import annotations

import re

import pytest

from airflow_provider_raybatch.batches import sweep
from airflow_provider_raybatch.batches.models import ServedModel
from airflow_provider_raybatch.get_provider_info import get_provider_info
from airflow_provider_raybatch.operators.served_batch import LATE
from airflow_provider_raybatch.plugins import documents, finding, nights, reading, threads
from airflow_provider_raybatch.serving import serve_batches
from airflow_provider_raybatch.serving.served_dag import RETRIES
from tests.support.documents import DOCS

PAGE = (DOCS / "report.md").read_text(encoding="utf-8")
OPERATING = (DOCS / "batch_api/operating.md").read_text(encoding="utf-8")


def test_settings_and_their_defaults() -> None:
    options = get_provider_info()["config"]["raybatch"]["options"]
    listed = re.findall(r"^\| `(report_\w+)` \| `?(\w*)`? +\|", PAGE, re.MULTILINE)
    listed += re.findall(r"^\| `(batch_api_\w+)` \| `?(\w*)`? ?\|", OPERATING, re.MULTILINE)
    assert dict(listed) == {name: option["default"] for name, option in options.items()}


def test_bounds_of_served_batches() -> None:
    assert f"| `retries` | {RETRIES} |" in OPERATING
    flat = " ".join(OPERATING.split())
    assert f"retried, {RETRIES} times by default" in flat
    assert f"go on after the window, for {LATE / sweep.DAY:.0f} day".replace("1 day", "a day") in flat
    assert f"| idempotency keys | {sweep.CREATES_KEPT / sweep.DAY:.0f} days after" in OPERATING
    assert sweep.STRAYS_KEPT == sweep.DAY
    assert "has left | after a day |" in OPERATING
    assert f"the first run {sweep.SLACK / 60:.0f} minutes later" in flat
    assert sweep.BATCHES_KEPT == 365 * sweep.DAY


def test_fields_of_a_served_model() -> None:
    table = OPERATING.partition("| field |")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert set(listed) == set(ServedModel.model_fields) - {"name", "created", "arguments"}


def test_the_example_of_models_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", OPERATING, re.DOTALL)
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", example)
    dags = serve_batches()
    assert [dag.dag_id for dag in dags] == ["batches_llama", "team_search_vectors", "batches_sweep"]


def test_bounds_are_those_of_the_code() -> None:
    flat = " ".join(PAGE.split())
    assert f"{finding.REPORT_BYTES >> 20} MiB of a report" in flat
    assert f"{finding.MANIFEST_BYTES >> 20} MiB of a manifest" in flat
    assert f"{documents.MOST_VALUES:,} values of each" in flat
    assert f"newest {finding.MOST_READ} entries of a journal of at most {finding.MOST_ENTRIES:,}" in flat
    assert f"{reading._SECONDS:.0f} seconds of S3" in flat
    assert f"its last {nights.MOST_NIGHTS} nights" in flat
    assert "16 wait" in flat
    assert threads.Readers.__init__.__defaults__ == (4, 16, 40)
