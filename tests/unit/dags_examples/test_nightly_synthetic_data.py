# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.row import Completion
from tests.support.airflow_tasks import OutletEvents
from tests.support.whole_job import without_cluster
from tests.unit.dags_examples.example import Example

TOPICS = [{"topic_id": n, "topic": topic} for n, topic in enumerate(["tides", "copper", "bridges", "yeast"])]
PARAMS = {"limit": None, "min_share": 0.5, "min_score": 3}


def pair(question: str, answer: str = "It is.") -> str:
    return json.dumps({"question": question, "answer": answer})


class Model:
    """What a model answers. The quizmaster repeats itself; the teacher's second draft is cut off.

    The judge dislikes copper, and no draft about yeast can be repaired.
    """

    def __init__(self) -> None:
        self.drafts = Counter[str]()

    def draft(self, topic: str, is_quizmaster: bool, number: int) -> str:
        if is_quizmaster:
            return pair(f"What moves the {topic} of the world most of all?")
        return (
            f'{{"question": "Is {topic}' if number else pair(f"Who was first to write down how {topic} work?")
        )

    def repair(self, topic: str) -> str:
        return "{" if topic == "yeast" else pair(f"Since when do people know about {topic} at all?")

    def answer(self, prompt: str) -> Completion:
        if prompt.startswith("Judge an answer."):
            text = json.dumps({"reason": "Look.", "score": 1 if "copper" in prompt else 5})
        else:
            (topic,) = re.findall(r"answer about: (\w+)", prompt)
            if "This answer was refused: the response was cut off after 32 tokens" in prompt:
                text = self.repair(topic)
            else:
                self.drafts[prompt] += 1
                text = self.draft(topic, "quizzes" in prompt, self.drafts[prompt] % 2 == 0)
        is_whole = text.endswith("}")
        return Completion(text, "stop" if is_whole else "length", 5 if is_whole else 32)


class Night:
    """One run of the DAG over four topics."""

    def __init__(self, example: Example, name: str, **params: Any) -> None:
        self.example, self.name, self.params = example, name, {**PARAMS, **params}
        self.folder = f"{example.module.OUTPUT}/{name}"
        self.planned = example.call("plan", self.folder, self.params)
        self.written = example.infer_in_steps("write", self.planned, name, self.params)
        self.accepted = self.accept()
        self.events = OutletEvents()
        self.loaded = example.call("load", self.accepted, run_id=name, outlet_events=self.events)

    def accept(self) -> dict[str, Any]:
        accepted: dict[str, Any] = self.example.call(
            "accept", self.written, self.folder, self.name, self.params
        )
        return accepted

    def rejected(self) -> Counter[str]:
        return Counter(row["rule"] for row in Rows(self.accepted["rejected"]).rows())

    def card(self) -> Any:
        return json.loads(Path(self.accepted["card_uri"]).read_text())


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    model = Model()
    monkeypatch.setattr(EchoEngine, "_completion", lambda _, asked, number: model.answer(asked.prompt))
    return model


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    without_cluster(monkeypatch)
    source = tmp_path / "topics.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in TOPICS) + "broken\n")
    return Example(
        "nightly_synthetic_data", monkeypatch, tmp_path, SOURCE=source,
        OUTPUT=tmp_path / "out", WAREHOUSE=tmp_path / "warehouse.duckdb",
    )  # fmt: skip


@pytest.mark.usefixtures("model")
def test_two_nights(example: Example) -> None:
    first = Night(example, "first")
    assert Rows(first.planned).count == 16  # 4 topics x 2 personas x 2 samples
    funnel = [(step["step"], step["rows"]) for step in first.card()["funnel"]]
    # 4 drafts are cut off, 3 of them are repaired; 4 rows are about copper; 3 are repeated.
    assert funnel == [
        ("input", 16), ("write", 15), ("score_threshold", 11),
        ("exact_duplicates", 8), ("near_duplicates", 8),
    ]  # fmt: skip
    assert first.rejected() == {"exact_duplicate": 3, "score_below": 4, "repair.parse": 1}
    assert first.loaded == first.accepted["rows"] == 8
    extra = first.events[example.module.QUESTIONS].extra
    assert extra["manifest_uri"] == first.accepted["manifest_uri"]
    asked = {step["name"]: step["asked"] for step in first.card()["runs"][0]["steps"]}
    assert asked == {"draft": 16, "repair": 4, "judge": 12, "rejudge": 3}

    second = Night(example, "second")
    assert second.accepted["rows"] == 0
    assert second.rejected() == {"accepted_earlier": 11, "score_below": 4, "repair.parse": 1}
    with duckdb.connect(str(example.module.WAREHOUSE)) as warehouse:
        query = "SELECT run_id, count(*), min(topic_id), max(score) FROM questions GROUP BY 1"
        assert warehouse.execute(query).fetchall() == [("first", 8, 0, 5)]


@pytest.mark.usefixtures("model")
def test_a_row_has_its_draft_or_its_repair(example: Example) -> None:
    rows = list(Rows(Night(example, "first").accepted).rows())
    repaired = {row["question"] for row in rows if row["draft_rejected"]}
    assert repaired == {f"Since when do people know about {topic} at all?" for topic in ("tides", "bridges")}
    assert all(row["topic"] in row["question"] for row in rows)
    assert {(row["answer"], row["score"], row["judgement"]) for row in rows} == {("It is.", 5, "Look.")}


@pytest.mark.usefixtures("model")
def test_a_repeated_night_replaces_its_rows(example: Example) -> None:
    first = Night(example, "first")
    again = first.accept()
    assert (again["rows"], again["uri"] == first.accepted["uri"]) == (8, False)
    assert example.call("load", again, run_id="first", outlet_events=OutletEvents()) == 8
    with duckdb.connect(str(example.module.WAREHOUSE)) as warehouse:
        assert warehouse.execute("SELECT count(*) FROM questions").fetchall() == [(8,)]


def test_a_night_in_which_every_answer_fails(
    example: Example, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(model, "draft", lambda *_: "{")
        patch.setattr(model, "repair", lambda _: "{")
        with pytest.raises(RaybatchError, match="max_error_fraction"):
            Night(example, "bad")
        night = Night(example, "tolerated", min_share=0)
        assert (night.loaded, night.rejected()) == (0, {"repair.parse": 16})
    assert Night(example, "next").loaded == 8
