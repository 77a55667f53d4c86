# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import UsageError
from tests.support.airflow_tasks import OutletEvents
from tests.support.datasets import inferred
from tests.unit.dags_examples.example import EXAMPLES, Example

PARAMS = {"metric": "exact match", "least_gain": 0.01, "alpha": 0.05}
CANDIDATES = {
    "old": {"model": "/models/old"},
    "new": {"model": "/models/new"},
    "odd": {"model": "/models/odd"},
}


def answers(right: int, whole: bool = True) -> list[Mapping[str, Any]]:
    """Return the answers of a model that solves the first `right` questions, in four samples each."""
    lines = (EXAMPLES / "data/questions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    answered = [row["answer"] if number < right else "0" for number, row in enumerate(rows)]
    made = [
        {**row, "response": text, "completions": [{"text": text}] * 4}
        for row, text in zip(rows, answered, strict=True)
    ]
    return made if whole else made[:-3]


class Evaluation:
    """One run of the DAG, up to the decision."""

    def __init__(self, example: Example, folder: Path, answered: dict[int, list[Any]], **params: Any) -> None:
        self.questions = example.call("benchmark", str(folder))
        results = [
            inferred(folder / f"answers/{index}", rows, map_index=index) for index, rows in answered.items()
        ]
        self.pairs = example.call("pair", results, str(folder))
        judged = []
        for index, pairs in enumerate(self.pairs):
            rows = [
                {
                    **row,
                    "response": "tie"
                    if row["first"] == row["second"]
                    else ("A" if row["first"] != "0" else "B"),
                }
                for row in Rows(pairs).rows()
            ]
            judged.append(inferred(folder / f"judged/{index}", rows, map_index=index))
        self.compared = example.call(
            "compare", self.questions, results, self.pairs, judged, str(folder), {**PARAMS, **params}
        )


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    return Example(
        "model_evaluation", monkeypatch, tmp_path, CANDIDATES=json.dumps(CANDIDATES), EVALUATION=tmp_path
    )


def test_the_better_model_is_promoted(example: Example, tmp_path: Path) -> None:
    run = Evaluation(example, tmp_path / "run", {0: answers(150), 1: answers(210), 2: answers(155)})
    compared = run.compared
    assert compared["promoted"] == "new"
    assert (compared["pairwise"]["new"]["wins"], compared["pairwise"]["new"]["losses"]) == (60, 0)
    assert compared["pairwise"]["odd"]["agreement"]["estimate"] == 1
    assert Rows(compared["scores"]).count == 3 * 4 * 300
    assert "Promote new" in Path(compared["md_uri"]).read_text()
    page = Path(compared["html_uri"]).read_text()
    assert page.count("<svg") >= 3 > page.count("data:image")
    assert example.call("promote_or_hold", compared) == "promote"
    events = OutletEvents()
    assert example.call("promote", compared, outlet_events=events)["model"] == "/models/new"
    assert events[example.module.PROMOTED].extra["name"] == "new"


def test_a_tie_is_held(example: Example, tmp_path: Path) -> None:
    run = Evaluation(example, tmp_path / "run", {0: answers(150), 1: answers(150), 2: answers(151)})
    assert run.compared["promoted"] is None
    assert example.call("promote_or_hold", run.compared) == "hold"
    assert example.call("hold", run.compared).startswith("Hold old: the difference of new is +0.000")


def test_failed_and_incomplete_candidates_are_reported(example: Example, tmp_path: Path) -> None:
    """`old` answers, `new` can't be loaded, and three rows of `odd` failed."""
    run = Evaluation(example, tmp_path / "run", {0: answers(150), 2: answers(300, whole=False)})
    assert run.compared["promoted"] is None
    table = Path(run.compared["md_uri"]).read_text()
    assert "| new (failed: it answered 0 of 300 questions) |" in table
    assert "| odd (failed: it answered 297 of 300 questions) |" in table


def test_without_the_baseline_nothing_is_promoted(example: Example, tmp_path: Path) -> None:
    run = Evaluation(example, tmp_path / "run", {1: answers(300), 2: answers(150)})
    assert run.pairs == []
    assert run.compared["promoted"] is None
    assert "new was not compared by exact match" in run.compared["reason"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            '{"id": "a", "question": "Why?"}',
            r"benchmark: .*:2 is unusable \(it lacks id, question or answer\)",
        ),
        ("no JSON", r"benchmark: .*:2 is unusable \(the line is not JSON"),
    ],
)
def test_a_benchmark_without_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, sentence: str
) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"id": "q", "question": "How much?", "answer": 3}\n' + line + "\n")
    example = Example("model_evaluation", monkeypatch, tmp_path, BENCHMARK=path)
    with pytest.raises(UsageError, match=sentence):
        example.call("benchmark", str(tmp_path / "out"))
