# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from airflow_provider_raybatch.dataset import Rows
from dags_examples.data import make
from tests.support.airflow_tasks import OutletEvents
from tests.support.datasets import inferred
from tests.unit.dags_examples.example import EXAMPLES, Example

PARAMS = {"min_quality": 2, "topics": ["people", "places", "trade"], "similarity": 0.7}


def labelled(row: Mapping[str, Any]) -> str:
    """Return labels that depend on the text alone, as those of a model at temperature 0 do."""
    size = len(row["text"])
    return json.dumps({"quality": 1 if size < 300 else 4, "topic": "other" if size % 50 == 0 else "places"})


class Night:
    """One run of the DAG."""

    def __init__(self, example: Example, folder: Path, **params: Any) -> None:
        self.sieved = example.call("sieve", str(folder))
        self.labelled = example.infer("label", self.sieved["kept"], folder / "labelled", labelled)
        self.events = OutletEvents()
        self.curated = example.call(
            "curate",
            self.sieved,
            self.labelled,
            str(folder),
            {**PARAMS, **params},
            outlet_events=self.events,
        )

    def dropped(self) -> list[dict[str, Any]]:
        return list(Rows(self.curated["dropped"]).rows())


def example_of(documents: str | Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    return Example("data_curation", monkeypatch, home, DOCUMENTS=documents, CORPUS=home / "corpus")


def test_planted_documents_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Precision and recall of each rule on the example's own data: 2,000 documents, 400 of them planted."""
    night = Night(example_of(EXAMPLES / "data/documents", tmp_path, monkeypatch), tmp_path / "night")
    planted: dict[str, str] = {}
    for path in sorted((EXAMPLES / "data/documents").glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                planted[f"{path}:{number}"] = json.loads(line.encode())["planted"] or "good"
            except (ValueError, TypeError, KeyError):
                planted[f"{path}:{number}"] = "broken_row"
    found = {row["origin"]: row["rule"] for row in night.dropped()}
    for rule in ("broken_row", "language", "exact_duplicate", "near_duplicate", "too_few_words"):
        really = {origin for origin, why in planted.items() if why == rule}
        dropped = {origin for origin, why in found.items() if why == rule}
        assert len(really) >= 20
        assert len(really & dropped) / len(really) >= 0.97, rule
        assert len(really & dropped) / len(dropped) >= 0.97, rule
    assert night.curated["rows"] + len(found) == 2000
    card = json.loads(Path(night.curated["card_uri"]).read_text())
    steps = [(one["step"], one["rows"]) for one in card["funnel"]]
    assert steps[:4] == [("input", 2000), ("readable", 1980), ("heuristics", 1920), ("language", 1800)]
    tokens = [one["tokens"] for one in card["funnel"]]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[-1] > 0


def test_partitions_labels_and_the_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = example_of(EXAMPLES / "data/documents/forum.jsonl", tmp_path, monkeypatch)
    night = Night(example, tmp_path / "night")
    query = f"SELECT DISTINCT language, topic, quality FROM '{night.curated['uri']}/**/*.parquet'"
    assert duckdb.sql(query).fetchall() == [("en", "places", 4)]
    extra = night.events[example.module.CORPUS].extra
    assert (extra["manifest_uri"], extra["rows"]) == (night.curated["manifest_uri"], night.curated["rows"])
    everything = Night(example, tmp_path / "again", min_quality=1, topics=["places", "other"])
    assert everything.curated["rows"] > night.curated["rows"]


def test_documents_that_mean_the_same_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an embedding model; here the last document has the vector of the first, and one has none."""
    raw, folder = EXAMPLES / "data/documents/forum.jsonl", tmp_path / "night"
    monkeypatch.setenv("RAYBATCH_EXAMPLE_EMBEDDER", "org/embedder")
    example = example_of(raw, tmp_path, monkeypatch)
    night = Night(example, folder)
    kept = len(list(Rows(night.curated).rows()))
    documents = list(Rows(night.labelled).rows())
    good = [row["origin"] for row in Rows(night.curated).rows()]
    pick = np.random.default_rng(1)
    vectors = {row["origin"]: pick.normal(size=64).tolist() for row in documents}
    vectors[good[-1]] = vectors[good[0]]
    rows = [{**row, "embedding": vectors[row["origin"]]} for row in documents if row["origin"] != good[1]]
    failed = [{"ordinal": 1, "step": "engine", "reason": "it failed", "row": {"origin": good[1]}}]
    embedded = inferred(tmp_path / "embedded", rows, letters=failed)
    call = {"outlet_events": OutletEvents(), "embedded": embedded}
    params = {**PARAMS, "cosine": 0.95}
    curated = example.call("curate", night.sieved, night.labelled, str(tmp_path / "again"), params, **call)
    rules = Counter(row["rule"] for row in Rows(curated["dropped"]).rows())
    assert (curated["rows"], rules["semantic_duplicate"], rules["engine"]) == (kept - 2, 1, 1)


def test_a_night_without_good_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines are no rows; a broken row and a document of 5 MB have theirs, and the next night works."""
    raw = tmp_path / "raw.jsonl"
    raw.write_text('\n\nbroken\n{"text": null}\n' + json.dumps({"text": "many words " * 500_000}) + "\n")
    example = example_of(raw, tmp_path, monkeypatch)
    night = Night(example, tmp_path / "night")
    assert night.curated["rows"] == 0
    assert sorted((row["rule"], row["line"]) for row in night.dropped()) == [
        ("broken_row", 1), ("empty", 2), ("too_long", 3),
    ]  # fmt: skip
    raw.write_text("")
    assert Night(example, tmp_path / "empty").curated["rows"] == 0
    raw.write_text((EXAMPLES / "data/documents/forum.jsonl").read_text())
    assert Night(example, tmp_path / "next").curated["rows"] > 300


def test_the_data_can_be_made_again(tmp_path: Path) -> None:
    make.main(tmp_path)
    for name in ("documents/forum.jsonl", "documents/library.jsonl", "questions.jsonl"):
        assert (tmp_path / name).read_bytes() == (EXAMPLES / "data" / name).read_bytes()
