# SPDX-License-Identifier: Apache-2.0
"""A job in which rows choose their adapter keeps every promise of text generation."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest, Summary
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.engine_log import engines
from tests.support.publishing import rows_of
from tests.support.reading import as_jsonl
from tests.support.whole_job import attempt, without_cluster

CUSTOMERS = ["acme", "umbrella", None]
ROWS = 24
FIELDS: dict[str, Any] = {
    "prompt": "{row.text}",
    "adapters": {"acme": "s3://models/acme", "umbrella": "acme/umbrella@v2"},
    "adapter_column": "customer",
    "sampling": {"temperature": 0},
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each text is asked by each customer, twice."""
    without_cluster(monkeypatch)
    texts = [f"text {number}" for number in range(ROWS // 6)] * 2
    pairs = itertools.product(texts, CUSTOMERS)
    rows = [{"id": n, "text": text, "customer": who} for n, (text, who) in enumerate(pairs)]
    (tmp_path / "in.jsonl").write_bytes(as_jsonl(rows))
    return str(tmp_path / "in.jsonl")


def answers(place: Folder, summary: Summary) -> dict[int, str]:
    manifest = parse(BatchManifest, place.read(summary.manifest_uri.removeprefix(f"{place.uri}/")))
    return {row["id"]: row["response"] for row in rows_of(place, manifest)}


def expected() -> dict[int, str]:
    return {
        row: f"[{who}] text {text}" if who else f"text {text}"
        for row, (text, who) in enumerate(itertools.product([*range(ROWS // 6)] * 2, CUSTOMERS))
    }


def test_each_row_has_the_answer_of_its_adapter(source: str, tmp_path: Path) -> None:
    """Also where rows of one adapter go into the engine together, since it holds fewer."""
    folder, log = LocalFolder(str(tmp_path / "out")), {"request_log": str(tmp_path / "log"), "max_loras": 1}
    summary = attempt(folder, 0, source, **FIELDS, engine_args=log, preserve_order=True)
    assert answers(folder, summary) == expected()
    assert list(answers(folder, summary)) == list(range(ROWS))
    (engine,) = engines(tmp_path / "log")
    # Equal requests to one adapter are asked once.
    assert [text for text, _ in engine.asked] == [f"text {number}" for number in range(ROWS // 6)] * 3
