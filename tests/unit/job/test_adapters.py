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
from tests.support.specs import TASK
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


def asked(log: Path) -> int:
    return sum(len(engine.asked) for engine in engines(log))


def test_each_row_has_the_answer_of_its_adapter(source: str, tmp_path: Path) -> None:
    """Also where rows of one adapter go into the engine together, since it holds fewer."""
    folder, log = LocalFolder(str(tmp_path / "out")), {"request_log": str(tmp_path / "log"), "max_loras": 1}
    summary = attempt(folder, 0, source, **FIELDS, engine_args=log, preserve_order=True)
    assert answers(folder, summary) == expected()
    assert list(answers(folder, summary)) == list(range(ROWS))
    (engine,) = engines(tmp_path / "log")
    # Equal requests to one adapter are asked once.
    assert [text for text, _ in engine.asked] == [f"text {number}" for number in range(ROWS // 6)] * 3


def test_changed_adapter_alone_is_asked_again(source: str, tmp_path: Path) -> None:
    """Not the rows of others, nor those of the model alone."""
    log, place = {"request_log": str(tmp_path / "log")}, LocalFolder(str(tmp_path / "out"))
    summary = attempt(place, 1, source, **FIELDS, engine_args=log)
    assert (answers(place, summary), asked(tmp_path / "log")) == (expected(), ROWS // 2)
    changed = {**FIELDS, "adapters": {**FIELDS["adapters"], "acme": "s3://models/acme-2"}}
    summary = attempt(place, 2, source, **changed, engine_args=log, token="r2")
    assert (answers(place, summary), asked(tmp_path / "log")) == (expected(), ROWS // 2 + ROWS // 6)


def test_jobs_of_one_adapter_share_responses_with_rows(source: str, tmp_path: Path) -> None:
    """By the store: whether the job or the row has named the adapter, the request is the same."""
    log = {"request_log": str(tmp_path / "log")}
    reuse = {"reuse": str(tmp_path / "store"), "engine_args": log}
    attempt(LocalFolder(str(tmp_path / "rows")), 0, source, **FIELDS, **reuse)
    before = asked(tmp_path / "log")
    fields = {"prompt": "{row.text}", "sampling": {"temperature": 0}, **reuse}
    for number, others in enumerate([{}, {"adapter": "s3://models/acme"}]):
        run = {"run_token": "t", "submission_id": "raybatch-y-0"}
        task = {"task": {**TASK, "task_id": f"job {number}"}, **run}
        place = LocalFolder(str(tmp_path / f"job {number}"))
        attempt(place, 0, source, **fields, **others, submission=task)
    assert asked(tmp_path / "log") == before


def test_unknown_name_is_a_dead_letter(source: str, tmp_path: Path) -> None:
    rows = [{"id": n, "text": "fine", "customer": who} for n, who in enumerate(("acme", "unlisted"))]
    Path(source).write_bytes(as_jsonl(rows))
    place = LocalFolder(str(tmp_path / "out"))
    summary = attempt(place, 0, source, **FIELDS, max_errors=1)
    assert answers(place, summary) == {0: "[acme] fine"}
    assert (summary.rows, summary.errors) == (1, 1)
