# SPDX-License-Identifier: Apache-2.0
"""Rows that give a prompt nothing but blanks: asked, left out or failed, and counted over all rows."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.report import parse_report
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.job.row import NOT_ASKED
from airflow_provider_raybatch.job.run.ray_data_llm import stages
from airflow_provider_raybatch.report.page import report_page
from tests.support.echo_place import EchoPlace
from tests.support.image_files import image_file
from tests.support.publishing import ONE
from tests.support.reading import as_jsonl
from tests.support.specs import spec_error

BLANKS = ["", " \n\t", "\u00a0", None]
ROWS = [
    {"text": text, "extra": " ", "chat": None if text is None else [{"role": "user", "content": text}]}
    for text in ("a fox", *BLANKS, "a dog")
]
TITLE = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
WAYS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "Name {row.text} of {row.extra}", "system_prompt": "Be brief."},
    "messages": {"messages": [{"role": "user", "content": "{row.text}"}]},
    "column": {"prompt_column": "text"},
    "several": {"prompt": "{row.text}", "sampling": {"n": 2}},
    "typed": {"prompt": "{row.text}", "response_format": TITLE},
    "jsonl": {"prompt": "{row.text}", "destination_format": "jsonl"},
    "embed": {"prompt": "passage: {row.text}", "model_task": "embed", "embed_dtype": "float16"},
    "classify": {"prompt_column": "text", "model_task": "classify"},
    "score": {"query": "an animal", "document": "{row.text}", "model_task": "score"},
    "function": {"prompt_function": "tests.unit.job.test_on_blank:stripped"},
    "chats": {"messages_column": "chat", "prompt": None},
    "embed function": {"prompt_function": "tests.unit.job.test_on_blank:stripped", "model_task": "embed"},
}


def stripped(row: dict[str, Any]) -> str:
    return (row["text"] or "").strip()


def die_unpublished(place: EchoPlace, number: int, rows: list[dict[str, Any]], **fields: Any) -> None:
    """Run a job that dies when all rows are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError):
            place.job(number, rows, **fields)


def response_of(row: dict[str, Any]) -> Any:
    return next(row[name] for name in ("response", "embedding", "label", "score") if name in row)


@pytest.mark.parametrize("way", WAYS)
def test_a_blank_row_is_delivered_without_an_answer(place: EchoPlace, way: str) -> None:
    events: list[Any] = []
    given = {"on_blank": "null", "deduplicate": False, "max_errors": 0, "emitted": events, **WAYS[way]}
    manifest = place.job(0, ROWS, **given)
    rows = sorted(place.rows(manifest), key=lambda row: (row["text"] or "").strip())
    assert [response_of(row) for row in rows[:4]] == [None] * 4
    assert all(response_of(row) is not None for row in rows[4:])
    assert (manifest.counts.ok, manifest.counts.error, manifest.counts.blank) == (6, 0, 4)
    assert place.generated() == 2
    said = [event.message for event in events if getattr(event, "message", "").startswith("on_blank: ")]
    assert said == [
        "on_blank: 4 rows have only blank text for the prompt, and are delivered without an answer."
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_blank_row_fails_by_choice(place: EchoPlace, way: str) -> None:
    manifest = place.job(0, ROWS, on_blank="error", max_errors=4, **WAYS[way])
    assert manifest.counts.errors_by_step == {"template": 4}
    reasons = {one["reason"] for one in place.letters(manifest)}
    why = "all that the prompt takes from the row is blank; set on_blank to 'null' to leave it out"
    assert reasons == {why}
    with pytest.raises(RaybatchError, match="max_error"):
        place.job(1, ROWS, on_blank="error", max_errors=3, on_destination_owned="take_over", **WAYS[way])


def test_blank_rows_are_asked_and_counted_by_default(place: EchoPlace) -> None:
    events: list[Any] = []
    source = place.root / "in.parquet"
    pq.write_table(pa.table({"text": pa.array(["a fox", "", " \n\t"], pa.large_string())}), source)
    manifest = place.job(0, [], source=[str(source)], deduplicate=False, emitted=events)
    assert (manifest.counts.ok, manifest.counts.blank, place.generated()) == (3, 2, 3)
    report = parse_report(place.folder.read("report.json"), "report.json")
    assert report.counts == manifest.counts
    assert "Rows with blank text" in report_page(report)
    assert any("2 rows have only blank text for the prompt, and are asked" in str(one) for one in events)


@pytest.mark.parametrize("steps", [[], [{"name": "draft", "prompt": "draft {row.text}"}]])
def test_an_unreadable_row_is_not_blank(place: EchoPlace, steps: list[dict[str, Any]]) -> None:
    source = place.root / "torn.jsonl"
    source.write_text('{"text": "a"}\n{"text": \n{"text": ""}\n')
    manifest = place.job(0, [], source=[str(source)], max_errors=1, **({"steps": steps} if steps else {}))
    (step,) = manifest.counts.errors_by_step
    assert (step.rpartition(".")[2], manifest.counts.blank) == ("read", 1)


def test_a_retry_counts_a_blank_row_once(place: EchoPlace) -> None:
    (place.root / "same.jsonl").write_bytes(as_jsonl(ROWS))
    given = {"on_blank": "null", "source": [str(place.root / "same.jsonl")]}
    die_unpublished(place, 0, [], **given)
    manifest = place.job(1, [], **given)
    assert (manifest.counts.ok, manifest.counts.blank, manifest.counts.resumed) == (6, 4, 6)
    assert (len(place.rows(manifest)), place.generated()) == (6, 2)


def test_rows_left_out_before_are_asked_where_they_should_be(place: EchoPlace) -> None:
    """A changed `on_blank` is a changed job: no answer of none is carried into it, nor the reverse."""
    (place.root / "same.jsonl").write_bytes(as_jsonl([{"text": text} for text in ("a fox", "")]))
    source = [str(place.root / "same.jsonl")]
    for number, (on_blank, generated) in enumerate([("null", 1), ("ask", 2), ("null", 2)]):
        die_unpublished(place, number, [], source=source, on_blank=on_blank)
        assert place.generated() == generated
    manifest = place.job(3, [], source=source, on_blank="null")
    assert [row["response"] for row in place.rows(manifest)] == ["a fox", None]
    assert place.job(4, [], source=source, on_blank="error", max_errors=1).counts.error == 1


def test_a_row_with_an_image_is_not_blank(place: EchoPlace) -> None:
    pytest.importorskip("PIL")
    (place.root / "red.png").write_bytes(image_file())
    rows = [{"text": " ", "photo": photo} for photo in (str(place.root / "red.png"), None, "")]
    manifest = place.job(0, rows, on_blank="null", images="photo")
    assert [row["response"] is None for row in place.rows(manifest)] == [False, True, True]
    assert manifest.counts.blank == 2


STEPS: list[dict[str, Any]] = [
    {"name": "draft", "prompt": "draft {row.text}", "sampling": {"n": 2}},
    {"name": "note", "prompt": "note {row.other}"},
    {"name": "judge", "prompt": "judge {row.draft_response}", "each": "draft"},
    {"name": "end", "prompt": "end {row.note_response}"},
]
STEP_ROWS = [{"text": text, "other": other} for text in ("a fox", "") for other in ("x", " ")]


@pytest.mark.parametrize("stops", [False, True])
def test_each_step_leaves_out_what_is_blank_for_it(place: EchoPlace, stops: bool) -> None:
    """The row goes on; a step that reads the answers of one that left it out is blank, too."""
    given = {"steps": STEPS, "on_blank": "null", "reuse": str(place.root / "store")}
    if stops:
        die_unpublished(place, 0, STEP_ROWS, **given)
    manifest = place.job(1, STEP_ROWS, **given)
    columns = [f"{step['name']}_response" for step in STEPS]
    rows = sorted(place.rows(manifest), key=lambda row: (row["text"] == "", row["other"] == " "))
    assert [[row[name] is not None for name in columns] for row in rows] == [
        [True, True, True, True],
        [True, False, True, False],
        [False, True, False, True],
        [False, False, False, False],
    ]
    assert manifest.steps is not None
    assert [(step.asked, step.skipped, step.errors) for step in manifest.steps] == [(2, 2, 0)] * 4
    assert (manifest.counts.blank, manifest.counts.error) == (2, 0)
    before = place.generated()
    assert before == 10
    place.folder = type(place.folder)(str(place.root / "again"))  # all answers are in the store
    if not stops:
        place.job(2, STEP_ROWS, **given)
        assert place.generated() == before


def test_a_step_fails_blank_rows_by_choice(place: EchoPlace) -> None:
    manifest = place.job(0, STEP_ROWS, steps=STEPS[1:2], on_blank="error", max_errors=2)
    assert manifest.counts.errors_by_step == {"note.template": 2}


def test_ray_data_llm_takes_a_row_that_is_left_out_as_answered() -> None:
    failure = json.dumps([NOT_ASKED.step, NOT_ASKED.reason])
    job: Any = SimpleNamespace(task=ONE, spec=ONE.spec)
    made = stages.checked_response({stages.CARRIED: b"", stages.ERROR: failure}, job)
    assert ONE.outputs([pickle.loads(made["result"])]).null_count == 1


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"format": "openai_batch", "id_column": "custom_id"}, "on_blank: it has no effect with format"),
        ({"model_task": "embed", "chunk_tokens": 9, "prompt": "{row.text}"}, "on_blank: "),
        ({"prompt": "{row.text}", "on_blank": "skip"}, "on_blank: it must be 'ask', 'null' or 'error'"),
    ],
)
def test_arguments_without_blank_rows_refuse_it(fields: dict[str, Any], why: str) -> None:
    assert why in spec_error(**{"on_blank": "null", **({"prompt": None} | fields)})
