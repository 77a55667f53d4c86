# SPDX-License-Identifier: Apache-2.0
"""What holds for each kind of task; `docs/tasks.md` has a table of these tests.

A further task needs a line in :data:`ASKED`, with what its rows ask; adapters, tools and images have
one each.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.task import MODEL_TASKS
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.job.tasks.registry import TASKS
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.engine_log import engines
from tests.support.numbered_pictures import Picture
from tests.support.publishing import dead_letters, rows_of
from tests.support.reading import as_jsonl
from tests.support.s3_server import S3Server
from tests.support.tools import tool
from tests.support.whole_job import attempt, without_cluster

thorough = pytest.mark.thorough("promises of each kind of task on S3; on a disk they run always")
ASKED: dict[str, dict[str, Any]] = {
    "generate": {"prompt": "{row.text}", "sampling": {"temperature": 0}},
    "embed": {"prompt_column": "text"},
    "chunks": {"model_task": "embed", "prompt_column": "text", "chunk_tokens": 2, "id_column": "n"},
    "classify": {"prompt_column": "text"},
    "score": {"query": "fox", "document": "{row.text}"},
    "ranking": {"model_task": "score", "query": "fox", "documents_column": "candidates"},
    "adapters": {
        "model_task": "generate",
        "prompt": "{row.text}",
        "sampling": {"temperature": 0},
        "adapters": {"acme": "s3://models/acme", "umbrella": "org/umbrella"},
        "adapter_column": "customer",
    },
    "tools": {
        "model_task": "generate",
        "prompt": "{row.text}",
        "sampling": {"temperature": 0},
        "tools": [tool("search", {"type": "object", "properties": {"query": {"type": "string"}}})],
        "tool_choice": "required",
    },
    "reasoning": {
        "model_task": "generate",
        "prompt": "{row.text}",
        "sampling": {"temperature": 0},
        "engine_args": {"reasoning_parser": "qwen3"},
    },
    "logprobs": {
        "model_task": "generate",
        "prompt": "{row.text}",
        "sampling": {"temperature": 0, "logprobs": 1, "prompt_logprobs": 0},
    },
    "images": {
        "model_task": "generate",
        "prompt": "{row.text}",
        "images": "image",
        "sampling": {"temperature": 0},
    },
}
"""Arguments of each kind of task, whose answers depend on the columns `text` and `customer` alone, or on a
list with the text in it. Rows with the same text have the same image."""
POOLED = ("embed", "chunks", "classify", "score", "ranking")
ANSWERS = {"tools": "tool_calls", "classify": "probabilities"}
"""Columns that differ more from row to row than the first one."""
MORE_WORDS = {"score": 1, "ranking": 3, "images": 1}
"""Words of a row's requests besides its text; an image counts as one."""
CUSTOMERS = {"a red fox": "acme", "deep blue sea": "umbrella"}
TEXTS = ["a red fox", "deep blue sea", "a red fox", "a bad row", "green hills", "an old dog"]


class Place:
    """A source of :data:`TEXTS`, and a log of what was asked for it."""

    def __init__(self, root: Path, kind: str, folder: Folder) -> None:
        self.folder, self.kind = folder, kind
        self.log = root / "log"
        self._source = root / "in.jsonl"
        rows: list[dict[str, Any]] = [
            {"n": n, "text": text, "customer": CUSTOMERS.get(text), "candidates": [text, "fish"]}
            for n, text in enumerate(TEXTS)
        ]
        if kind == "images":
            pytest.importorskip("PIL")
            for row in rows:
                row["image"] = Picture(TEXTS.index(row["text"])).uri()
        self._source.write_bytes(as_jsonl(rows))
        self._asked = {"model_task": kind, **ASKED[kind]}

    def run(self, number: int, fails: str = "", kills: str = "", **fields: Any) -> BatchManifest:
        """Run a submission; rows whose text has `fails` in it fail in the engine, and `kills` kills it."""
        args = {"request_log": str(self.log), "fail_pattern": fails, "kill_pattern": kills}
        asked = {**self._asked, "engine_args": {**self._asked.get("engine_args", {}), **args}, **fields}
        uri = attempt(self.folder, number, str(self._source), **asked).manifest_uri
        return parse(BatchManifest, self.folder.read(uri.removeprefix(f"{self.folder.uri}/")))

    def asked(self) -> int:
        """Requests so far, of all submissions."""
        return sum(len(engine.asked) for engine in engines(self.log)) if self.log.exists() else 0

    def words(self, texts: Iterable[str]) -> int:
        """Words of the requests of rows."""
        return sum(len(text.split()) + MORE_WORDS.get(self.kind, 0) for text in texts)

    def answers(self, manifest: BatchManifest) -> dict[int, Any]:
        column = ANSWERS.get(self.kind, str(manifest.response_column))
        rows = rows_of(self.folder, manifest)
        if self.kind != "chunks":
            return {row["n"]: row[column] for row in rows}
        found: dict[int, Any] = {row["n"]: [] for row in rows}
        for row in rows:
            found[row["n"]].append((row["chunk_index"], row["chunk_text"], row[column]))
        return found

    def rows_of_each(self) -> list[int]:
        """Rows of the dataset that each row of the source becomes."""
        return [-(-len(text.split()) // 2) if self.kind == "chunks" else 1 for text in TEXTS]


def test_each_kind_of_task_is_tested() -> None:
    assert set(MODEL_TASKS) == set(TASKS) <= set(ASKED)


@pytest.fixture(params=ASKED)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    without_cluster(monkeypatch)
    return Place(tmp_path, request.param, LocalFolder(str(tmp_path / "out")))


def test_each_row_has_its_own_answer(place: Place) -> None:
    """N rows in are n rows out, in the order of the input where that is asked for."""
    manifest = place.run(0, preserve_order=True)
    assert (manifest.ordered, manifest.counts.input, manifest.counts.ok) == (True, 6, 6)
    numbers = [n for n, rows in enumerate(place.rows_of_each()) for _ in range(rows)]
    assert [row["n"] for row in rows_of(place.folder, manifest)] == numbers
    answers = place.answers(manifest)
    assert len({str(answer) for answer in answers.values()}) == 5
    assert manifest.tokens.input == place.words(TEXTS)


def test_equal_rows_are_asked_once(place: Place) -> None:
    manifest = place.run(0)
    assert (manifest.counts.duplicates, place.asked()) == (1, 5)
    answers = place.answers(manifest)
    assert answers[0] == answers[2]


def test_an_attempt_goes_on_where_the_last_one_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError):
            place.run(0, fails="bad", max_errors=1)
    manifest = place.run(1)
    assert (manifest.counts.ok, manifest.counts.resumed) == (6, 4)
    assert place.asked() == 5 + 1


def test_another_run_reuses_answers(place: Place, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first = place.answers(place.run(0, reuse=store))
    asked, place.folder = place.asked(), LocalFolder(str(tmp_path / "other"))
    again = place.run(1, token="other", reuse=store)
    assert (again.counts.reused, place.asked()) == (6, asked)
    assert place.answers(again) == first


def test_a_failed_row_is_a_dead_letter(place: Place) -> None:
    manifest = place.run(0, fails="bad", max_errors=1)
    assert (manifest.counts.ok, manifest.counts.errors_by_step) == (5, {"engine": 1})
    (letter,) = dead_letters(place.folder, manifest)
    assert (letter["ordinal"], letter["row"]["text"]) == (3, "a bad row")


def test_a_row_that_kills_the_engine_is_a_dead_letter(place: Place) -> None:
    manifest = place.run(0, kills="bad", max_errors=1)
    assert (manifest.counts.ok, manifest.counts.errors_by_step) == (5, {"engine": 1})
    (letter,) = dead_letters(place.folder, manifest)
    assert (letter["ordinal"], "dies of this row" in letter["reason"]) == (3, True)


def test_too_many_failed_rows_end_the_job(place: Place) -> None:
    with pytest.raises(RaybatchError, match="max_error"):
        place.run(0, fails="red")


def test_paid_tokens_are_counted_for_limits(place: Place) -> None:
    """Of the rows that were asked: `max_tokens_total` and the budget of later attempts go by them."""
    manifest = place.run(0)
    words = place.words(dict.fromkeys(TEXTS))
    generated = words if place.kind == "generate" else int(manifest.tokens_generated or 0)
    assert (generated > 0) is (place.kind not in POOLED)
    assert manifest.tokens_paid == words + generated


@pytest.mark.parametrize(
    "place",
    [one if one in {"generate", "chunks"} else pytest.param(one, marks=thorough) for one in ASKED],
    indirect=True,
)
def test_a_bucket_holds_parts_store_and_dataset(place: Place, s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    for number, name in enumerate(("one", "two")):
        place.folder = S3Folder(bucket, name, s3_server.credentials)
        manifest = place.run(number, token=name, reuse=f"s3://{bucket}/store")
    assert (manifest.counts.ok, manifest.counts.reused, place.asked()) == (6, 6, 5)
    assert len(place.answers(manifest)) == 6
