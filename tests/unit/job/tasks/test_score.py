# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of `model_task` score: how well documents fit a query."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

ROWS = [
    {"q": "red fox", "d": ["deep sea", "a red fox", "a red dog"]},
    {"q": "sea", "d": ["deep sea"]},
]
PAIR: dict[str, Any] = {"query": "{row.q}", "document": "{row.d}"}


def score(place: EchoPlace, number: int = 0, rows: Any = ROWS, **fields: Any) -> BatchManifest:
    """Run a job over rows into a destination of its own."""
    place.folder = LocalFolder(str(place.root / f"out-{number}"))
    args = {"request_log": str(place.root / "log"), **fields.pop("engine_args", {})}
    asked = {"query": "{row.q}", "prompt": None, "engine_args": args, **fields}
    if "document" not in fields:
        asked["documents_column"] = "d"
    return place.job(number, rows, model_task="score", **asked)


def test_a_documents_column_is_ranked_best_first(place: EchoPlace) -> None:
    manifest = score(place)
    assert [(column.name, column.type) for column in manifest.columns] == [
        ("q", "string"),
        ("d", "list<element: string>"),
        ("ranking", "list<element: struct<index: int64, score: float>>"),
        ("input_tokens", "int64"),
    ]
    one, other = place.rows(manifest)
    assert [found["index"] for found in one["ranking"]] == [1, 2, 0]
    assert one["ranking"] == sorted(one["ranking"], key=lambda found: -found["score"])
    assert all(0 < found["score"] < 1 for found in one["ranking"])
    assert [found["index"] for found in other["ranking"]] == [0]
    assert (one["input_tokens"], manifest.tokens.input, manifest.response_column) == (14, 17, "ranking")


def test_another_top_n_asks_no_engine(place: EchoPlace) -> None:
    """The store keeps the scores of all documents."""
    store = str(place.root / "store")
    whole = place.rows(score(place, 0, reuse=store))
    asked = place.generated()
    manifest = score(place, 1, reuse=store, top_n=2)
    assert (manifest.counts.reused, place.generated()) == (2, asked)
    assert [row["ranking"] for row in place.rows(manifest)] == [row["ranking"][:2] for row in whole]


def test_a_pair_has_one_score(place: EchoPlace) -> None:
    """The same as in a ranking of one, also from the store."""
    store, rows = str(place.root / "store"), [{"q": "red fox", "d": text} for text in ROWS[0]["d"]]
    manifest = score(place, 0, rows, reuse=store, output_prefix="my_", **PAIR)
    assert [(column.name, column.type) for column in manifest.columns][2] == ("my_score", "float")
    found = [row["my_score"] for row in place.rows(manifest)]
    ranked = place.rows(score(place, 1))[0]["ranking"]
    assert found == [one["score"] for one in sorted(ranked, key=lambda one: one["index"])]
    lists = [{"q": row["q"], "d": [row["d"]]} for row in rows]
    assert score(place, 2, lists, reuse=store).counts.reused == 3


def test_raw_scores_are_without_a_sigmoid(place: EchoPlace) -> None:
    rows = [{"q": "fox", "d": "fox"}]
    raw = place.rows(score(place, 0, rows, pooling={"use_activation": False}, **PAIR))[0]["score"]
    made = place.rows(score(place, 1, rows, **PAIR))[0]["score"]
    assert made == pytest.approx(1 / (1 + np.exp(-raw)))


def test_rows_without_documents_are_dead_letters(place: EchoPlace) -> None:
    rows = [
        {"q": "fox", "d": value}
        for value in (["a"], None, [], "text", ["a", None], ["a", " "], [1], {"a": 1}, '["a"]')
    ]
    manifest = score(place, 0, [*rows, {"q": " ", "d": ["a"]}], max_errors=9)
    assert (manifest.counts.ok, manifest.counts.errors_by_step) == (2, {"template": 8})
    reasons = {letter["ordinal"]: letter["reason"] for letter in place.letters(manifest)}
    assert reasons[9] == "the text of query is empty, and a pooling model needs a text"
    no_list = "column 'd' has no list of texts; for one text a row, use document"
    assert {reasons[number] for number in (1, 2, 3, 4, 6, 7)} == {no_list}
    assert reasons[5] == "document 1 in the list of column 'd' is empty, and a pooling model needs a text"


def test_a_long_pair_fails_or_its_document_is_cut(place: EchoPlace) -> None:
    rows, args = [{"q": "a b", "d": ["c d e", "c"]}, {"q": "a b c", "d": ["d"]}], {"max_model_len": 3}
    manifest = score(place, 0, rows, max_errors=2, engine_args=args)
    assert manifest.counts.errors_by_step == {"tokenize": 2}
    manifest = score(place, 1, rows, max_errors=1, engine_args=args, on_overlong="truncate")
    (row,) = place.rows(manifest)
    assert (row["input_tokens"], row["truncated_prompt_tokens"]) == (6, 2)
    assert len({found["score"] for found in row["ranking"]}) == 1


def test_numbers_that_mean_nothing_fail_their_row() -> None:
    task = task_of(spec(model_task="score", query="q", document="{row.text}"))
    made = task.check(Response(input_tokens=2, pooled=np.array([float("nan")], np.float32)), {})
    assert isinstance(made, RowFailure)
    assert made.reason.startswith("the answer has numbers that are not finite")
    assert task.check(Response(), {}) == RowFailure("engine", "the engine gave no score")


@pytest.mark.parametrize("top_n", [None, 1, 2, 9])
def test_rankings_of_many_rows(top_n: int | None) -> None:
    """Equal scores keep the order of the documents."""
    task = task_of(spec(model_task="score", query="q", documents_column="d", top_n=top_n))
    lists = [[0.5, 0.75, 0.25], [1.0], [0.5, 0.5, 2.0], [-1.0, 3.0]]
    responses = [Response(input_tokens=1, pooled=np.array(one, np.float32)) for one in lists]
    outputs = pa.chunked_array([task.outputs(responses[:1]), task.outputs(responses[1:])])
    (ranking, _) = task.published(outputs)
    ranking.validate(full=True)
    expected = [
        [
            {"index": place, "score": one[place]}
            for place in sorted(range(len(one)), key=lambda place: -one[place])
        ]
        for one in lists
    ]
    assert ranking.to_pylist() == [one[:top_n] for one in expected]
