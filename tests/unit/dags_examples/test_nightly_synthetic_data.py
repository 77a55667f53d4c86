# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_raybatch.workflows.rows import Rows
from tests.support.airflow_tasks import OutletEvents
from tests.unit.dags_examples.example import Example

TOPICS = [{"topic_id": n, "topic": topic} for n, topic in enumerate(["tides", "copper", "bridges", "yeast"])]
PARAMS = {"limit": None, "min_share": 0.5, "min_score": 3}


def pair(question: str, answer: str = "It is.") -> str:
    return json.dumps({"question": question, "answer": answer})


def first_answers(row: Mapping[str, Any]) -> list[str]:
    """Return the first responses: the quizmaster repeats itself, the teacher breaks the schema once."""
    topic = row["topic"]
    if row["persona"] == "quizmaster":
        return [pair(f"What moves the {topic} of the world most of all?")] * 2
    return [pair(f"Who was first to write down how {topic} work?"), f'{{"question": "Is {topic} old?"}}']


def repaired(row: Mapping[str, Any]) -> str | None:
    if row["topic"] == "yeast":
        return None
    return pair(f"Since when do people know about {row['topic']} at all?")


def judged(row: Mapping[str, Any]) -> str:
    return json.dumps({"reason": "Look.", "score": 1 if row["topic"] == "copper" else 5})


class Night:
    """One run of the DAG over four topics."""

    def __init__(self, example: Example, folder: Path, name: str, **params: Any) -> None:
        self.example, self.name, self.params = example, name, {**PARAMS, **params}
        tonight = folder / name
        call, infer = example.call, example.infer
        self.planned = call("plan", str(tonight), self.params)
        self.generated = infer("generate", self.planned, tonight / "generated", first_answers)
        self.checked = call("check", self.generated, str(tonight))
        self.repaired = None
        if example.runs("repair", self.checked["failed"]):
            self.repaired = infer("repair", self.checked["failed"], tonight / "repaired", repaired)
        self.unique = call("deduplicate", self.checked, self.repaired, str(tonight), name, self.params)
        self.judged = infer("judge", self.unique["unique"], tonight / "judged", judged)
        self.accepted = call(
            "accept", self.generated, self.repaired, self.unique, self.judged, str(tonight), name, self.params
        )
        self.events = OutletEvents()
        self.loaded = call("load", self.accepted, run_id=name, outlet_events=self.events)

    def rejected(self) -> Counter[str]:
        return Counter(row["rule"] for row in Rows(self.accepted["rejected"]).rows())


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    source = tmp_path / "topics.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in TOPICS) + "broken\n")
    return Example(
        "nightly_synthetic_data", monkeypatch, tmp_path, SOURCE=source,
        OUTPUT=tmp_path / "out", WAREHOUSE=tmp_path / "warehouse.duckdb",
    )  # fmt: skip


def test_two_nights(example: Example, tmp_path: Path) -> None:
    first = Night(example, tmp_path, "first")
    assert Rows(first.planned).count == 8
    funnel = [(step["step"], step["rows"]) for step in first.unique["funnel"]]
    # 8 rows x 2 samples; 4 break the schema, 3 of them are repaired; 4 are repeated.
    assert funnel == [
        ("input", 16), ("schema", 12), ("repair", 15), ("exact_duplicates", 11), ("near_duplicates", 11),
    ]  # fmt: skip
    assert first.rejected() == {"exact_duplicate": 4, "score_below": 3, "engine": 1}
    assert first.loaded == first.accepted["rows"] == 8
    extra = first.events[example.module.QUESTIONS].extra
    assert extra["manifest_uri"] == first.accepted["manifest_uri"]
    card = json.loads(Path(extra["card_uri"]).read_text())
    assert [(step["step"], step["rows"]) for step in card["funnel"][-2:]] == [
        ("judgement", 11), ("score_threshold", 8),
    ]  # fmt: skip
    assert [run["step"] for run in card["runs"]] == ["generate", "repair", "judge"]

    second = Night(example, tmp_path, "second")
    assert second.accepted["rows"] == 0
    # Rows that the judge refused on the first night are judged again.
    assert second.rejected() == {"accepted_earlier": 11, "exact_duplicate": 1, "score_below": 3, "engine": 1}
    with duckdb.connect(str(example.module.WAREHOUSE)) as warehouse:
        query = "SELECT run_id, count(*), min(topic_id), max(score) FROM questions GROUP BY 1"
        assert warehouse.execute(query).fetchall() == [("first", 8, 0, 5)]


def test_a_repeated_night_replaces_its_rows(example: Example, tmp_path: Path) -> None:
    first = Night(example, tmp_path, "first")
    results = (first.generated, first.repaired, first.unique, first.judged)
    again = example.call("accept", *results, str(tmp_path / "first"), "first", first.params)
    assert (again["rows"], again["uri"] == first.accepted["uri"]) == (8, False)
    assert example.call("load", again, run_id="first", outlet_events=OutletEvents()) == 8
    with duckdb.connect(str(example.module.WAREHOUSE)) as warehouse:
        assert warehouse.execute("SELECT count(*) FROM questions").fetchall() == [(8,)]


def test_a_night_in_which_every_answer_fits_repairs_nothing(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(row: Mapping[str, Any]) -> list[str]:
        return [pair(f"What does a {row['persona']} know of {row['topic']}, {n}?") for n in ("one", "two")]

    monkeypatch.setitem(globals(), "first_answers", answers)
    night = Night(example, tmp_path, "whole")
    assert night.repaired is None
    assert [step["rows"] for step in night.unique["funnel"][:3]] == [16, 16, 16]
    assert night.loaded == night.accepted["rows"] > 0
    card = json.loads(Path(night.events[example.module.QUESTIONS].extra["card_uri"]).read_text())
    assert [run["step"] for run in card["runs"]] == ["generate", "judge"]


def test_an_empty_night(example: Example, tmp_path: Path) -> None:
    Path(example.module.SOURCE).write_text("")
    night = Night(example, tmp_path, "empty")
    assert (night.loaded, night.accepted["rows"], night.rejected()) == (0, 0, {})


def test_a_night_in_which_every_answer_fails(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "first_answers", lambda row: ["no", "no"])
    monkeypatch.setitem(globals(), "repaired", lambda row: "still no")
    with pytest.raises(AirflowFailException, match="min_share: only 0 of 16 answers fit the schema"):
        Night(example, tmp_path, "bad")
    night = Night(example, tmp_path, "tolerated", min_share=0)
    assert (night.loaded, night.rejected()) == (0, {"not_json": 16})
    monkeypatch.undo()
    assert Night(example, tmp_path, "next").loaded == 8


def test_limit_takes_the_first_topics(example: Example, tmp_path: Path) -> None:
    planned = example.call("plan", str(tmp_path / "out"), {**PARAMS, "limit": 1})
    assert [(row["topic"], row["persona"]) for row in Rows(planned).rows()] == [
        ("tides", "quizmaster"), ("tides", "teacher"),
    ]  # fmt: skip


def test_the_report_names_what_the_event_names(example: Example) -> None:
    report = example.module.report_on_questions().task_dict["report"].python_callable
    event = type("Event", (), {"extra": {"uri": "/x", "rows": 3, "rejected": "r", "output_tokens": 9,
                                         "card_uri": "c", "more": 1}})  # fmt: skip
    events = {example.module.QUESTIONS: [event]}
    assert report(triggering_asset_events=events)[0]["rows"] == 3
