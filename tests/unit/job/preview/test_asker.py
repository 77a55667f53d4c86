# SPDX-License-Identifier: Apache-2.0
"""Answers of a task with steps in a preview: those that its job would get, step by step."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.events import LONGEST_DOCUMENT
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.preview import RowAnswer
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.numbered_pictures import Picture
from tests.support.publishing import dead_letters
from tests.support.reading import as_jsonl
from tests.support.web import Answer, Web
from tests.support.whole_job import attempt
from tests.unit.job.preview.conftest import ReportOf
from tests.unit.job.preview.test_main import TOLERANT, manifest_at

SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
DRAFT: dict[str, Any] = {
    "name": "draft",
    "prompt": "{row.text}",
    "response_format": "json_object",
    "on_rejected": "continue",
}
REPAIR: dict[str, Any] = {
    "name": "repair",
    "prompt": "mend {row.draft_response}: {row.draft_rejected}",
    "when": ["draft_rejected", "is not null"],
}
JUDGE: dict[str, Any] = {
    "name": "judge",
    "prompt": "judge {row.draft_response} of {row.id}",
    "response_format": SCORE,
}
GREEDY: dict[str, Any] = {"sampling": {"temperature": 0}}
ROWS = [{"id": "one", "text": '{"a": 1}'}, {"id": "two", "text": "no JSON"}, {"id": "three", "text": "{}"}]


class Place:
    """A source, a destination, and what a preview and a job of them say."""

    def __init__(self, folder: Path, report_of: ReportOf, told: list[Any]) -> None:
        self._folder = folder
        self.root = folder / "out"
        self.out = LocalFolder(str(self.root))
        self._report_of, self._told = report_of, told

    def preview(self, rows: list[dict[str, Any]], ask: int, source: str = "in.jsonl", **fields: Any) -> Any:
        """Preview the rows, greedily unless `fields` say other."""
        self.source = self._folder / source
        if not self.source.exists():  # written anew, it would be another input
            if source.endswith(".parquet"):
                pq.write_table(pa.Table.from_pylist(rows), self.source)
            else:
                self.source.write_bytes(as_jsonl(rows))
        return self._report_of(self.out, str(self.source), ask=ask, **{**GREEDY, **fields})

    def plan(self, **fields: Any) -> Any:
        return self._report_of(self.out, str(self.source), "plan", **{**GREEDY, **fields})

    def answers(self) -> dict[int, dict[str, RowAnswer]]:
        """Answers of the last preview, by row and step, in the order in which they came."""
        found: dict[int, dict[str, RowAnswer]] = defaultdict(dict)
        for event in self._told:
            if isinstance(event, events.RowAnswered):
                found[event.answer.ordinal][event.answer.step] = event.answer
        return found

    def parts(self) -> list[dict[str, Any]]:
        """The rows of all parts that jobs have written."""
        paths = [entry.path for entry in self.out.list(layout.PARTS) if entry.path.endswith(".parquet")]
        return [row for path in paths for row in pq.read_table(self.root / path).to_pylist()]

    def job(self, **fields: Any) -> list[dict[str, Any]]:
        """Run the job; returns its rows."""
        attempt(self.out, 0, str(self.source), preserve_order=True, **{**GREEDY, **fields})
        manifest = manifest_at(self.out)
        found = [pq.read_table(f"{manifest.uri}/{file.path}") for file in manifest.files]
        return [row for table in found for row in table.to_pylist()]


@pytest.fixture
def place(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> Place:
    return Place(tmp_path, report_of, told)


def assert_shown(answer: RowAnswer, row: dict[str, Any]) -> None:
    """A step's answer is in the dataset's columns, and its columns are those of the dataset."""
    name = answer.step
    assert answer.completions[0].text == row[f"{name}_response"]
    assert answer.completions[0].output_tokens == row[f"{name}_output_tokens"]
    assert answer.input_tokens == row[f"{name}_input_tokens"]
    columns = json.loads(answer.columns or "{}")
    assert columns == {column: row[column] for column in columns}


def test_each_step_answers_as_in_the_job(place: Place) -> None:
    fields = {"steps": [DRAFT, REPAIR, JUDGE]}
    _, end = place.preview(ROWS, 3, **fields)
    assert end.refusals == ()
    assert not list(place.out.list("")), "nothing is written"
    answers = place.answers()
    assert [list(answers[number]) for number in range(3)] == [
        ["draft", "judge"],
        ["draft", "repair", "judge"],
        ["draft", "judge"],
    ]
    for number, row in enumerate(place.job(**fields)):
        for answer in answers[number].values():
            assert_shown(answer, row)
    assert set(json.loads(answers[1]["judge"].columns)) == {"judge_score"}
    assert "not JSON" in json.loads(answers[1]["draft"].columns)["draft_rejected"]
    assert answers[1]["draft"].messages == ()  # as they stand in the row
    assert [one.text for one in answers[1]["judge"].messages] == ["judge no JSON of two"]


def test_one_step_is_asked_as_in_the_job(place: Place) -> None:
    """The engine has the sampling of the whole job, and each step its own."""
    draft = {"name": "draft", "prompt": "one {row.id} three", "sampling": {"max_tokens": 2}}
    fields = {"steps": [draft], "sampling": {"temperature": 0, "max_tokens": 5}}
    place.preview(ROWS, 1, **fields)
    (answer,) = place.answers()[0].values()
    assert (answer.step, answer.completions[0].text) == ("draft", "one one")
    assert_shown(answer, place.job(**fields)[0])


@pytest.mark.parametrize("temperature", [0, 1])
def test_keys_and_earlier_answers_are_those_of_the_first_step(place: Place, temperature: int) -> None:
    """Also where equal sampled requests are numbered: a row that it leaves out is none of them."""
    judge = {**JUDGE, "prompt": "judge {row.id}"}
    rows = [{"id": name, "text": "alike"} for name in ("one", "two", "three")]
    steps = [{**DRAFT, "when": ["id", "!=", "one"]}, judge]
    fields = {"steps": steps, "sampling": {"temperature": temperature}}
    shown, _ = place.preview(rows, 0, **fields)
    place.job(**fields)
    drafts = [row for row in place.parts() if "input" not in row]  # their rows had no answers before
    keys = {row["ordinal"]: row["key"].hex() for row in drafts}
    assert {row.ordinal: row.key for row in shown if not row.is_skipped} == keys
    assert [row.key is None for row in shown] == [True, False, False]
    again, _ = place.preview(rows, 0, **fields)
    assert [row.answered for row in again] == [None, "earlier job", "earlier job"]


@pytest.mark.parametrize("step", ["draft", "judge"])
def test_a_failed_row_says_which_step_and_asks_no_other(place: Place, step: str) -> None:
    pattern = "no JSON" if step == "draft" else "judge no JSON"
    fields = {
        **TOLERANT,
        "steps": [DRAFT, JUDGE],
        "engine_args": {"fail_pattern": pattern},
    }
    place.preview(ROWS, 3, **fields)
    answers = place.answers()
    place.job(**fields)
    (letter,) = dead_letters(place.out, manifest_at(place.out))
    assert list(answers[1]) == (["draft"] if step == "draft" else ["draft", "judge"])
    assert answers[1][step].failure == f"{letter['step']}: {letter['reason']}"


def test_a_later_prompt_that_fails_is_shown(place: Place) -> None:
    """One of the first step is shown in its row."""
    judge = {**JUDGE, "prompt": "judge {row.repair_response}"}
    rows = [*ROWS, {"id": "four", "text": None}]
    steps = [DRAFT, REPAIR, judge]
    shown, _ = place.preview(rows, 4, **TOLERANT, steps=steps)
    answers = place.answers()
    assert str(answers[0]["judge"].failure).startswith("judge.template: ")
    assert answers[0]["judge"].messages == ()
    assert answers[1]["judge"].failure is None
    assert 3 not in answers
    assert shown[3].failure.startswith("template: ")


def test_each_completion_is_asked_about(place: Place) -> None:
    draft = {"name": "draft", "prompt": "a {row.text}", "sampling": {"n": 3, "temperature": 1}}
    judge = {**JUDGE, "prompt": "judge {row.draft_response}", "each": "draft", "best": "score"}
    last = {"name": "last", "prompt": "{row.judge_score} {row.draft_response}"}
    place.preview(ROWS, 2, steps=[draft, judge, last])
    answers = place.answers()
    assert list(answers) == [0, 1]
    for row in answers.values():
        drafts = {one.text for one in row["draft"].completions}
        assert {one.text for one in row["judge"].messages} == {f"judge {draft}" for draft in drafts}
        scores = [json.loads(one.text)["score"] for one in row["judge"].completions]
        assert len(scores) == 3
        (asked,) = row["last"].messages
        score, _, best = asked.text.partition(" ")
        assert (int(score), best in drafts) == (max(scores), True)


def test_a_row_that_only_later_steps_ask(place: Place) -> None:
    draft = {**DRAFT, "when": ["id", "==", "two"]}
    judge = {"name": "judge", "prompt": "judge {row.text}", "when": ["id", "!=", "three"]}
    place.preview(ROWS, 3, steps=[draft, judge])
    assert {number: list(steps) for number, steps in place.answers().items()} == {
        0: ["judge"],
        1: ["draft", "judge"],
    }


def test_a_dead_engine_fails_its_step(place: Place) -> None:
    place.preview(ROWS, 3, engine_args={"kill_pattern": "judge no JSON"}, steps=[DRAFT, JUDGE])
    answers = place.answers()
    assert all(answers[number]["draft"].failure is None for number in range(3))
    assert str(answers[1]["judge"].failure).startswith("judge.engine: the engine died while it had this row")


def test_an_answer_of_a_step_stays_one_event(place: Place, told: list[Any]) -> None:
    """However long it is, and what it is about."""
    rows = [{"id": "".join(map(chr, range(0x1F300, 0x1F300 + 40))), "text": "\U0001f600" * 30_000}]
    draft = {"name": "draft", "prompt": "{row.text}", "sampling": {"n": 40, "temperature": 1}}
    judge = {"name": "judge", "prompt": "{row.id} {row.draft_response}", "each": "draft"}
    place.preview(rows, 1, steps=[draft, judge])
    answered = [event for event in told if isinstance(event, events.RowAnswered)]
    assert [event.answer.step for event in answered] == ["draft", "judge"]
    for event in answered:
        document = event.model_dump_json().encode()  # no line has more than this
        assert 10_000 < len(document) < LONGEST_DOCUMENT
    assert len(answered[1].answer.messages) == 17  # the last one says how many are left out


def test_rows_that_the_first_step_leaves_out_do_not_fail(place: Place) -> None:
    """Neither in a preview nor in a plan, though its prompt has no value for them."""
    rows = [{"id": f"r{number}", "hint": None if number else "x"} for number in range(10)]
    draft = {"name": "draft", "prompt": "{row.hint}", "when": ["hint", "is not null"]}
    judge = {"name": "judge", "prompt": "judge {row.id}"}
    fields = {"steps": [draft, judge]}
    shown, end = place.preview(rows, 3, **fields)
    assert [row.failure for row in shown] == [None] * 10
    assert [list(steps) for steps in place.answers().values()] == [["draft", "judge"], ["judge"], ["judge"]]
    assert end.refusals == ()
    plan = place.plan(**fields)
    assert (plan.refusals, plan.remaining, plan.prompt_tokens.rows) == ((), 10, 1)
    assert any(notice.startswith("steps: answers in the response store") for notice in plan.notices)
    assert len(place.job(**fields)) == 10


@pytest.mark.parametrize("source", ["in.jsonl", "in.parquet"])
def test_a_later_step_without_its_column_is_refused(place: Place, source: str) -> None:
    """And no engine is asked."""
    judge = {**JUDGE, "prompt": "judge {row.nope}"}
    shown, end = place.preview(ROWS, 3, source, steps=[DRAFT, judge])
    (refusal,) = end.refusals
    assert refusal.startswith("steps: judge: prompt: ")
    assert [row.failure for row in shown] == [None] * 3
    assert "ask: no row was asked, since the job would be refused" in end.notices
    assert place.answers() == {}


def test_a_row_too_long_for_the_first_step_is_not_asked(place: Place, told: list[Any]) -> None:
    rows = [{"id": "one", "text": "word " * 50}, {"id": "two", "text": "short"}]
    shown, _ = place.preview(rows, 2, steps=[DRAFT, JUDGE], engine_args={"max_model_len": 20}, **TOLERANT)
    assert str(shown[0].failure).startswith("tokenize: ")
    assert list(place.answers()) == [1]
    assert any(event.event == "phase" and "for 1 row" in event.message for event in told)


def test_rows_are_read_where_their_files_are(
    web: Web, tmp_path: Path, report_of: ReportOf, told: list[Any]
) -> None:
    """A source without a version is copied to this node, and the copy is gone before an engine is asked."""
    url = "https://hub.example/export.jsonl"
    web.serve(url, Answer(as_jsonl(ROWS)))
    fields = {"steps": [DRAFT, JUDGE], **GREEDY}
    _, end = report_of(LocalFolder(str(tmp_path / "out")), url, ask=2, **fields)
    assert end.refusals == ()
    steps = [event.answer.step for event in told if isinstance(event, events.RowAnswered)]
    assert steps == ["draft", "judge"] * 2


def test_each_step_is_shown_the_images_that_it_names(place: Place, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    picture = Picture(7)
    (tmp_path / "a.png").write_bytes(picture.content())
    (tmp_path / "b.png").write_bytes(b"no picture")
    rows = [{"id": name, "scan": str(tmp_path / name)} for name in ("a.png", "b.png")]
    read = {"name": "read", "prompt": "read {row.id}", "images": "scan"}
    steps = [read, {"name": "judge", "prompt": "judge {row.read_response}"}]
    _, end = place.preview(rows, 2, **TOLERANT, steps=steps)
    assert end.refusals == ()
    good, bad = place.answers().values()
    assert good["read"].completions[0].text == f"{picture.said} read a.png"
    assert good["judge"].completions[0].text == f"judge {picture.said} read a.png"
    assert list(bad) == ["read"]
    assert str(bad["read"].failure).startswith("read.media: ")


@pytest.mark.parametrize(
    ("references", "when", "refusal", "notice"),
    [
        (["/etc/a", "/etc/b", "/etc/c"], None, "steps: judge: images: none of the first 3 rows", ""),
        (["/etc/a", None, "/etc/c"], None, "max_error_fraction: 2 of the first 3 rows fail already", ""),
        (["/etc/a", "/etc/b"], ["id", "==", "two"], "steps: judge: images: none of the first 2 rows", ""),
        (["/etc/a", None], ["id", "==", "two"], "", ""),
        (["/etc/a", None], ["draft_rejected", "is null"], "", "steps: judge: images: 1 of the first 2 rows"),
        ([None, None, None], None, "", ""),
    ],
    ids=["all", "too many", "all that are asked", "one that is not asked", "by an answer", "none"],
)  # fmt: skip
def test_images_of_later_steps_are_looked_at_first(
    place: Place, references: list[str | None], when: Any, refusal: str, notice: str
) -> None:
    """Before earlier steps are paid for; also by the job."""
    pytest.importorskip("PIL")
    rows = [{**row, "scan": one} for row, one in zip(ROWS, references, strict=False)]
    judge = {**JUDGE, "images": "scan", "when": [when] if when else []}
    fields = {"steps": [DRAFT, judge]}
    _, end = place.preview(rows, 0, **fields)
    assert [one[: len(refusal)] for one in end.refusals] == ([refusal] if refusal else [])
    assert any(one.startswith(notice) for one in end.notices)
    if refusal:
        with pytest.raises(RaybatchError) as caught:
            place.job(**fields)
        assert str(caught.value).startswith(refusal)
        assert place.parts() == []
