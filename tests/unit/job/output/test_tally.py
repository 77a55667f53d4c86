# SPDX-License-Identifier: Apache-2.0
"""What the report shows of rows, whatever they hold."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.manifest import RunStatistics
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.table import table_of
from airflow_provider_raybatch.job.output.commit import prepare
from airflow_provider_raybatch.job.output.distributions import Answers, Lengths, are_chosen
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.report import DatasetReport
from airflow_provider_raybatch.job.parts.part import Part, write_all
from airflow_provider_raybatch.job.row import Completion, Response, RowFailure, RowOutcome
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import failure, part, response
from tests.support.specs import submitted


def reported(folder: LocalFolder, parts: Sequence[Part], rows: int, **fields: Any) -> Report:
    """Publish parts; return the report beside the dataset."""
    spec = submitted(destination=folder.uri, **fields)
    journal, warnings = Journal(folder, spec.submission, take_over=False), []
    journal.claim()
    report = DatasetReport(folder, spec, [], 1, warnings.append)
    manifest = prepare(spec, journal, parts, rows, RunStatistics(), pa.schema([]), "", report=report)
    assert warnings == []
    assert manifest.report_uri is not None
    place = manifest.report_uri.removeprefix(f"{folder.uri}/").replace(".html", ".json")
    return Report.model_validate_json(folder.read(place))


def test_samples_are_spread_over_the_rows_and_the_files(disk: LocalFolder) -> None:
    written = [
        part(disk, [{"text": f"t{n}"} for n in range(at, at + 250)], first=at) for at in range(0, 1000, 250)
    ]
    report = reported(disk, written, 1000, rows_per_part=100)
    ordinals = [one.ordinal for one in report.samples]
    assert len(ordinals) == 10
    assert len({ordinal // 200 for ordinal in ordinals}) == 5
    assert max(np.diff(ordinals)) < 250
    first = report.samples[0]
    assert (first.request, first.response) == (f"Say t{first.ordinal}", f"r{first.ordinal}")
    assert json.loads(str(first.row)) == {"text": f"t{first.ordinal}"}
    assert (first.input_tokens, first.output_tokens, first.finish_reason) == (3, 1, "stop")
    assert reported(disk, written, 1000, rows_per_part=300).samples == report.samples


def test_few_good_rows_are_all_shown(disk: LocalFolder) -> None:
    results = [response("ok") if n in (3, 4, 90) else failure() for n in range(100)]
    written = [part(disk, [{"text": "t"}] * 100, results)]
    report = reported(disk, written, 100)
    assert [one.ordinal for one in report.samples] == [3, 4, 90]
    assert [(one.step, one.rows, one.reason) for one in report.failures] == [("engine", 97, "it broke")]


def test_examples_of_failed_rows_show_different_reasons(disk: LocalFolder) -> None:
    reasons = (
        ["the prompt has 7 tokens"] * 50
        + ["the prompt has 8 tokens", "it is no text", "it broke"]
        + ["late"] * 9
    )
    results = [RowFailure("template" if n % 2 else "engine", reason) for n, reason in enumerate(reasons)]
    rows = [{"text": f"t{n}"} for n in range(len(results))]
    report = reported(disk, [part(disk, rows, results)], len(rows), max_error_fraction=1.0)
    assert [(one.step, one.rows) for one in report.failures] == [("engine", 31), ("template", 31)]
    assert [len(one.examples) for one in report.failures] == [3, 3]
    shown = {example.reason.split()[0] for group in report.failures for example in group.examples}
    assert shown == {"the", "it", "late"}
    assert {example.request for group in report.failures for example in group.examples} == {"p"}


def test_no_content_with_zero_samples(disk: LocalFolder) -> None:
    results = [response("yes"), response("no"), failure()] * 4
    report = reported(disk, [part(disk, [{"text": "t"}] * 12, results)], 12, report_samples=0)
    assert not report.content
    assert (report.samples, report.answers) == ([], None)
    assert [(one.rows, one.examples) for one in report.failures] == [(4, [])]
    assert [one.rows for one in report.output_tokens] == [8]


def test_answers_are_counted_as_long_as_few_differ(disk: LocalFolder) -> None:
    labels = [response(["spam", " ham", "ham\n"][n % 3]) for n in range(60)]
    few = reported(disk, [part(disk, [{"text": "t"}] * 60, labels)], 60)
    assert few.answers is not None
    assert [(one.text, one.rows) for one in few.answers] == [("ham", 40), ("spam", 20)]


@pytest.mark.parametrize(
    "texts",
    [[str(n) for n in range(51)] * 3, ["a" * 61] * 9, ["a", "b", "c"]],
    ids=["many", "long", "single"],
)
def test_answers_that_tell_nothing_are_dropped(texts: list[str]) -> None:
    answers = Answers()
    answers.add(pa.chunked_array([pa.array(texts)]))
    assert answers.few is None


def test_a_choice_is_counted_even_if_each_came_once() -> None:
    answers = Answers(are_chosen(submitted(sampling={"structured_outputs": {"choice": ["a", "b"]}})))
    answers.add(pa.chunked_array([pa.array(["a", None, "b"])]))
    assert [one.text for one in answers.few or ()] == ["a", "b"]


ODD = {
    "bytes": b"\xff\x00" * 500,
    "nan": float("nan"),
    "date": datetime.date(2024, 2, 29),
    "map": pa.scalar([("lasts", datetime.timedelta(seconds=90))], pa.map_(pa.string(), pa.duration("s"))),
    "nested": {"a": [1, None], "long": ["x"] * 100},
    "html": "</script><b>\u202eevil",
    "nul": "a\x00b",
    "megabyte": "m" * 1_000_000,
}


def test_rows_with_odd_values_are_json_of_bearable_length(disk: LocalFolder) -> None:
    table = pa.table({name: pa.array([value]) for name, value in ODD.items()})
    told = [part(disk, table, [response("y" * 1_000_000)])]
    report = reported(disk, told, 1, prompt="Say {row.map} {row.html}")
    (one,) = report.samples
    row = json.loads(str(one.row))
    assert (row["nan"], row["date"], row["html"], row["nul"]) == (
        "nan",
        "2024-02-29",
        ODD["html"],
        "a\ufffdb",
    )
    assert row["map"] == {"lasts": "PT1M30S"}
    assert str(one.request).startswith('Say {"lasts": "PT1M30S"} </script>')
    assert row["bytes"].endswith("(1,000 bytes)")
    assert row["nested"]["long"][-1] == "\u2026 80 more"
    assert len(str(one.row)) < 4000
    assert len(str(one.response)) <= 2000
    assert str(one.response).endswith(" more characters]")


def test_of_thousands_of_columns_those_of_the_prompt_are_shown(disk: LocalFolder) -> None:
    rows = [{f"c{n}": n for n in range(3000)} | {"text": "asked"}]
    report = reported(disk, [part(disk, rows)], 1)
    row = json.loads(str(report.samples[0].row))
    assert next(iter(row)) == "text"
    assert row["\u2026"] == f"and {3001 - (len(row) - 1):,} more columns"
    assert len(str(report.samples[0].row)) < 2100


def of_task(
    folder: LocalFolder, answers: Sequence[Response], rows: pa.Table, spec: BatchInferenceSpec
) -> Part:
    outcomes = [RowOutcome(place, answer) for place, answer in enumerate(answers)]
    (written,) = write_all(folder, "_raybatch/parts/task/run/raybatch-x-0/0", rows, outcomes, task_of(spec))
    return written


def test_no_rows_make_a_report(disk: LocalFolder) -> None:
    report = reported(disk, [], 0)
    assert (report.rows, report.samples, report.output_tokens) == (0, [], [])


def test_lengths_are_exact_while_few_differ() -> None:
    lengths = Lengths()
    lengths.add(np.array([3, 3, 7, 12]))
    other = Lengths()
    other.add(np.array([7, 40]))
    lengths.merge(other)
    bins = lengths.bins
    assert sum(one.rows for one in bins) == 6
    assert [one.rows for one in bins if one.first <= 7 <= one.last] == [2]
    assert len(bins) <= 21
    assert (bins[0].first, bins[-1].last >= 40) == (2, True)


def test_a_long_tail_gets_one_bin() -> None:
    lengths = Lengths()
    lengths.add(np.array([*range(1000)] * 10 + [1_000_000]))
    bins = lengths.bins
    assert (bins[-1].last, bins[-1].rows) == (1_000_000, 1)
    assert len(bins) == 21


CHUNKS = Response(
    pooled=np.ones((2, 4), np.float32),
    input_tokens=9,
    extra={"chunks": [{"text": "one", "start": 0, "tokens": 4}, {"text": "two", "start": 3, "tokens": 5}]},
)
BODY = {
    "model": "echo",
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": json.dumps(BODY)}


VECTOR = Response(pooled=np.arange(64, dtype=np.float32), input_tokens=5)
LABEL = Response(pooled=np.array([0.1, 0.9], np.float32), labels=("ham", "spam"), input_tokens=5)
SCORES = Response(pooled=np.array([0.25, 0.5], np.float32), input_tokens=5)
CALL = {"name": "find", "arguments": '{"city": "Oslo"}'}
CALLS = Response((Completion("", "stop", 3, extra={"tool_calls": [CALL]}),), input_tokens=5)
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
TEXT = {"prompt": "{row.text}"}


@pytest.mark.parametrize(
    ("fields", "row", "answer", "asked", "told"),
    [
        ({"model_task": "embed", **TEXT}, {"text": "t"}, VECTOR, "t", "[0.0, 1.0, 2.0"),
        ({"model_task": "embed", "chunk_tokens": 5, "prompt_column": "text"}, {"text": "onetwo"}, CHUNKS,
         "onetwo", "[1.0, 1.0"),
        ({"model_task": "classify", **TEXT}, {"text": "t"}, LABEL, "t", "spam"),
        ({"model_task": "score", "query": "{row.text}", "document": "{row.text}"}, {"text": "t"},
         Response(pooled=np.array([0.5], np.float32), input_tokens=5), "query: t\n\ndocument: t", "0.5"),
        ({"model_task": "score", "query": "{row.q}", "documents_column": "docs"},
         {"q": "why", "docs": ["x", "y"]}, SCORES, "query: why\n\ndocument: x\n\ndocument: y",
         '[{"index": 1, "score": 0.5}'),
        ({"tools": [TOOL], **TEXT}, {"text": "t"}, CALLS, "t", 'find({"city": "Oslo"})'),
        ({"format": "openai_batch", "destination_format": "openai_batch"}, LINE, response("Hello"),
         "system: Be kind.\n\nuser: Hi", "Hello"),
        ({"sampling": {"n": 2}, **TEXT}, {"text": "t"}, response("a", "b"), "t", "a"),
        ({"system_prompt": "Be brief.", **TEXT}, {"text": "\ud800 half"}, response("a"),
         "system: Be brief.\n\nuser: ", "a"),
    ],
    ids=["embed", "chunks", "classify", "score", "ranking", "tools", "lines", "several", "surrogate"],
)  # fmt: skip
def test_requests_and_answers_of_each_task_are_shown(
    fields: dict[str, Any], row: dict[str, Any], answer: Response, asked: str, told: str, disk: LocalFolder
) -> None:
    fields = {"prompt": None, **fields}
    row = {
        name: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v for name, v in row.items()
    }
    spec = submitted(destination=disk.uri, **fields)
    report = reported(disk, [of_task(disk, [answer], table_of([row]), spec)], 1, **fields)
    (one,) = report.samples
    assert str(one.request).startswith(asked)
    assert str(one.response).startswith(told)
    assert one.input_tokens == answer.input_tokens
    labels = None if report.answers is None else [one.text for one in report.answers]
    assert labels == (["spam"] if told == "spam" else None)


@pytest.mark.parametrize(
    ("fields", "chat", "asked"),
    [
        ({"prompt": "What is it?"}, None, "What is it?"),
        ({"messages_column": "chat"}, [{"type": "image"}, {"type": "text", "text": "hi"}], "[image]\nhi"),
    ],
)
def test_requests_are_shown_without_their_images(
    fields: dict[str, Any], chat: Any, asked: str, disk: LocalFolder
) -> None:
    """The parts lack the bytes, and no report needs them."""
    columns = {} if chat is None else {"chat": [json.dumps([{"role": "user", "content": chat}])]}
    fields = {"images": ["photo"], **fields}
    spec = submitted(destination=disk.uri, **fields)
    written = of_task(disk, [response("a cat")], pa.table({"photo": [b"content"], **columns}), spec)
    (one,) = reported(disk, [written], 1, **fields).samples
    assert (one.request, one.response) == (asked, "a cat")
    assert "photo" not in str(one.row)
