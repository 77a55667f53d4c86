# SPDX-License-Identifier: Apache-2.0
"""Answers of the engine in a preview are those of the job, and one event each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.events import LONGEST_DOCUMENT
from airflow_provider_raybatch.contract.preview import RowAnswer
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.preflight import engine_check, ready
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preview import ask, counters, tokens
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.clusters import HEAD
from tests.support.numbered_pictures import Picture
from tests.support.publishing import dead_letters
from tests.support.reading import as_jsonl
from tests.support.whole_job import attempt
from tests.unit.job.preview.conftest import ReportOf
from tests.unit.job.preview.test_main import TOLERANT, manifest_at, texts

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "employees": {"type": "integer"}},
    "required": ["name", "employees"],
}


def answers_in(told: list[Any]) -> list[RowAnswer]:
    return [event.answer for event in told if isinstance(event, events.RowAnswered)]


def test_answers_are_those_of_the_job(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    """Its dead letters, too."""
    place = LocalFolder(str(tmp_path / "out"))
    source = texts(tmp_path / "in.jsonl", "a b c d e", "bad", "w " * 40, "f")
    fields = {
        **TOLERANT,
        "prompt": "{row.text}",
        "sampling": {"max_tokens": 2, "temperature": 0},
        "on_truncated": "error",
        "engine_args": {"fail_pattern": "bad", "max_model_len": 20},
    }
    rows, _ = report_of(place, source, ask=4, **fields)
    shown = {row.ordinal: row.failure for row in rows if row.failure}
    found = answers_in(told)
    attempt(place, 0, source, **fields)
    letters = dead_letters(place, manifest_at(place))
    reasons = {letter["ordinal"]: f"{letter['step']}: {letter['reason']}" for letter in letters}
    assert shown | {one.ordinal: one.failure for one in found if one.failure} == reasons
    assert set(reasons) == {0, 1, 2}
    assert [one.ordinal for one in found] == [0, 1, 3]  # one fails before the engine
    assert [(one.text, one.finish_reason, one.output_tokens) for one in found[0].completions] == [
        ("a b", "length", 2)
    ]
    assert (found[2].completions[0].text, found[2].failure, found[2].input_tokens) == ("f", None, 1)


def test_typed_columns_are_shown(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    source = texts(tmp_path / "in.jsonl", "Acme", "Bolt")
    fields = {"prompt": "{row.text}", "response_format": SCHEMA, "output_prefix": "x_"}
    report_of(LocalFolder(str(tmp_path / "out")), source, ask=1, **fields)
    (answer,) = answers_in(told)
    columns = json.loads(answer.columns)
    assert list(columns) == ["x_name", "x_employees"]
    assert columns["x_name"] == json.loads(answer.completions[0].text)["name"]


def test_vectors_are_shown_shortly(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    source = texts(tmp_path / "in.jsonl", "Acme")
    fields = {"prompt": "{row.text}", "model_task": "embed", "sampling": {}, "pooling": {"dimensions": 60}}
    _, end = report_of(LocalFolder(str(tmp_path / "out")), source, ask=1, **fields)
    assert end.refusals == ()
    (answer,) = answers_in(told)
    *numbers, count = json.loads(answer.columns)["embedding"]
    assert (len(numbers), count) == (4, "60 numbers in all")
    assert (answer.completions, answer.failure) == ((), None)


def test_labels_and_scores_are_shown_as_published(
    tmp_path: Path, report_of: ReportOf, told: list[Any]
) -> None:
    source, found = texts(tmp_path / "in.jsonl", "Acme"), []
    for number, fields in enumerate((
        {"model_task": "classify", "prompt": "{row.text}"},
        {"model_task": "score", "prompt": None, "query": "Acme", "document": "{row.text}"},
    )):
        place = LocalFolder(str(tmp_path / f"out-{number}"))
        _, end = report_of(place, source, ask=1, sampling={}, **fields)
        assert end.refusals == ()
        found += [json.loads(answer.columns) for answer in answers_in(told)]
    labelled, scored = found
    assert list(labelled["probabilities"]) == ["LABEL_0", "LABEL_1"]
    assert labelled["probabilities"][labelled["label"]] == labelled["probability"]
    assert scored["score"] > 0.9


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}], ids=["sampled", "greedy"])
def test_rows_are_asked_with_their_images(
    tmp_path: Path, report_of: ReportOf, told: list[Any], sampling: dict[str, Any]
) -> None:
    """The version of an image is part of a greedy request, so it is looked for before the engine is asked."""
    pytest.importorskip("PIL")
    picture = Picture(7)
    (tmp_path / "a.png").write_bytes(picture.content())
    (tmp_path / "b.png").write_bytes(b"no picture")
    images = [[str(tmp_path / "a.png")], [str(tmp_path / "b.png")], [], [str(tmp_path / "gone.png")]]
    rows = [{"text": "What is that?", "image": one} for one in images]
    source = tmp_path / "in.jsonl"
    source.write_bytes(as_jsonl(rows))
    fields = {**TOLERANT, "prompt": "{row.text}", "images": "image", "sampling": sampling}
    report_of(LocalFolder(str(tmp_path / "out")), str(source), ask=4, **fields)
    seen, bad, none, gone = answers_in(told)
    assert seen.completions[0].text == f"{picture.said} What is that?"
    assert all(str(one.failure).startswith("media: ") for one in (bad, gone))
    assert none.completions[0].text == "What is that?"


def test_an_answer_stays_one_event(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    """Whatever it holds, and however many completions there are."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(as_jsonl([{"text": "\x1b[2J\u202e" + "\U0001f600" * 30_000}]))
    fields = {"prompt": "{row.text}", "sampling": {"n": 40, "temperature": 1}}
    report_of(LocalFolder(str(tmp_path / "out")), str(path), ask=1, **fields)
    (event,) = [event for event in told if isinstance(event, events.RowAnswered)]
    line = events.line(event, "ab" * 32, 0)
    assert len(line.encode()) < LONGEST_DOCUMENT
    assert "\x1b" not in line
    assert event.answer.completions[0].text.endswith("more characters]")


def test_what_an_engine_takes_is_said_before(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    report_of(
        LocalFolder(str(tmp_path / "out")), texts(tmp_path / "in.jsonl", "a"), prompt="{row.text}", ask=1
    )
    said = [event.message for event in told if isinstance(event, events.Phase)]
    sentence = "no warm engine is idle, so one must start for 1 row: it takes 1 CPU and no GPU of the cluster"
    assert sentence in said


def test_a_refused_job_asks_nothing(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    source = texts(tmp_path / "in.jsonl", "a")
    fields = {"prompt": "{row.text}", "engine_args": {"max_model_len": "x"}}
    _, end = report_of(LocalFolder(str(tmp_path / "out")), source, ask=1, **fields)
    assert end.refusals
    assert "ask: no row was asked, since the job would be refused" in end.notices
    assert not answers_in(told)


def test_a_node_with_vllm_is_waited_for(
    tmp_path: Path, report_of: ReportOf, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an autoscaler has ended all of them; a preview that asks nothing goes on without."""
    came: list[str] = []
    monkeypatch.setattr(engine_check, "vllm_is_here", lambda: False)
    monkeypatch.setattr(cluster_view, "view", lambda: ClusterView((HEAD,)))
    monkeypatch.setattr(cluster_view, "gpu_node", lambda _: next(iter(came), None))
    monkeypatch.setattr(cluster_view, "wait_for", lambda *_: came.append("node-1"))
    monkeypatch.setattr(ready, "check_engine", lambda *_: ModelCheck())
    monkeypatch.setattr(tokens, "VllmCounter", lambda job, _: counters.EchoCounter(job))
    monkeypatch.setattr(ask, "_waited_for", lambda *_: [RowAnswer(ordinal=0)])
    source = texts(tmp_path / "in.jsonl", "a")
    fields = {
        "engine": "vllm",
        "model": "acme/m",
        "prompt": "{row.text}",
        "cluster_wait": 60,
        "accelerator_type": "H100",
    }
    place = LocalFolder(str(tmp_path / "out"))
    _, end = report_of(place, source, **fields)
    assert any("no node that runs now has vLLM" in notice for notice in end.notices)
    _, end = report_of(place, source, **{**fields, "cluster_wait": 0})
    assert [one.partition(":")[0] for one in end.refusals] == ["accelerator_type"]
    assert any(notice.endswith("no node that runs now has vLLM") for notice in end.notices)
    assert came == []
    report_of(place, source, ask=1, **fields)
    assert came == ["node-1"]
    assert len(answers_in(told)) == 1
