# SPDX-License-Identifier: Apache-2.0
"""Whole jobs with ``report_samples=0``: what rows hold is nowhere but in the dataset and its failed rows."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.report import parse_report
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.output.unfinished import report_of_run
from airflow_provider_raybatch.job.phases import driver, publishing
from airflow_provider_raybatch.report.card import dataset_card
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.openai_lines import IN_AND_OUT, chat, line
from tests.support.row_canaries import (
    CANARY,
    canary,
    canary_lines,
    canary_rows,
    found_in,
    outside,
    rows_of,
    written,
)
from tests.support.specs import submitted
from tests.support.whole_job import attempt, without_cluster

OF_ROWS: dict[str, Any] = {
    "prompt": "{row.system}{row.text}",
    "id_column": "id",
    "sampling_column": "sampling",
    "response_format": "json_object",
    "destination_format": "jsonl",
}
OF_LINES: dict[str, Any] = {**IN_AND_OUT, "served_model_name": "echo"}
ENGINE = {"max_model_len": 64, "fail_pattern": "BREAK"}


class Job:
    """A job over rows with canaries, and all that it shows."""

    def __init__(self, folder: Path, printed: pytest.CaptureFixture[str], log: pytest.LogCaptureFixture):
        self.out = LocalFolder(str(folder / "out"))
        self._folder = folder
        self._printed, self._log = printed, log
        self.events: list[events.Event] = []
        self.error: RaybatchError | None = None

    def run(self, rows: list[Any], **fields: Any) -> Job:
        return self.run_file("in.jsonl", written(rows), **fields)

    def run_file(self, name: str, content: bytes, **fields: Any) -> Job:
        source = self._folder / name
        source.write_bytes(content)
        given = {"engine_args": ENGINE, "report_samples": 0, **fields}
        try:
            attempt(self.out, 0, str(source), emitted=self.events, **given)
        except RaybatchError as error:
            self.error = error
        return self

    def shown(self) -> list[tuple[str, str]]:
        """Return what it shows, and where."""
        out, err = self._printed.readouterr()
        logged = "".join(f"{record.getMessage()} {record.exc_text or ''}" for record in self._log.records)
        found = list(outside(self.out, self.events, self.error))
        return [*found, ("stdout", out), ("stderr", err), ("logging", logged)]


@pytest.fixture
def job(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> Job:
    without_cluster(monkeypatch)
    caplog.set_level(logging.INFO)
    return Job(tmp_path, capfd, caplog)


def test_a_job_over_rows_shows_none_of_them(job: Job) -> None:
    job.run(canary_rows(), **OF_ROWS, max_error_fraction=1.0)
    assert job.error is None
    shown = job.shown()
    assert {"manifest.json", "report.json", "report.html", "event committed", "event notice"} <= {
        *dict(shown)
    }
    assert found_in(shown) == []
    manifest = json.loads(job.out.read("manifest.json"))
    assert manifest["reasons_by_step"] == {
        "read": "the line is not JSON",
        "template": "a column that the prompt names is null",
        "tokenize": "the prompt has 99 tokens and max_model_len is 64, which leaves no room for a response",
        "engine": "the echo engine fails such requests",
        "parse": "the response is not JSON",
    }
    assert rows_of(job.out, "data").count(canary("value")) >= 2  # prompt and response
    letters = rows_of(job.out, "dead_letter")
    assert all(
        canary(name) in letters for name in ("response", "parameter", "torn-text", "list", "broken-text")
    )


def test_a_job_over_batch_lines_shows_none_of_them(job: Job) -> None:
    lines = canary_lines()
    job.run(lines, **OF_LINES)
    assert job.error is None
    assert found_in(job.shown()) == []
    assert rows_of(job.out, "data").count("\n") == 2
    errors = rows_of(job.out, "errors")
    assert errors.count("\n") == len(lines) - 2
    assert all(canary(name) in errors for name in ("temperature", "unknown", "role", "other-model", "token"))
    notices = [event.text() for event in job.events if isinstance(event, events.Notice)]
    assert any("will be error lines" in text and "the line's " in text for text in notices)


@pytest.mark.parametrize("is_lines", [False, True])
def test_a_job_with_too_many_failures_quotes_no_row(job: Job, is_lines: bool) -> None:
    given = OF_LINES if is_lines else OF_ROWS
    job.run(canary_lines() if is_lines else canary_rows(), **given, max_errors=2)
    assert job.error is not None
    assert job.error.failure_class is FailureClass.TOO_MANY_ERRORS
    assert "fail already, more than" in str(job.error)
    assert found_in(job.shown()) == []


@pytest.mark.parametrize("is_lines", [False, True])
def test_rows_that_fail_late_are_counted_and_not_quoted(job: Job, is_lines: bool) -> None:
    """The engine fails them, so preflight sees nothing wrong, and the job leaves dead letters."""
    texts = [f"BREAK {canary(str(number))}" for number in range(4)]
    if is_lines:
        job.run([line(text, chat(text)) for text in texts], **OF_LINES, max_errors=1)
    else:
        job.run([{"id": text, "text": text} for text in texts], prompt="{row.text}", id_column="id")
    assert job.error is not None
    assert "4 in step 'engine' (row 0: the echo engine fails such requests)" in str(job.error)
    shown = job.shown()
    assert any(where.endswith("record.json") for where, _ in shown)
    assert any(where.endswith("report.json") for where, _ in shown)
    assert found_in(shown) == []
    assert rows_of(job.out, "dead_letter").count(canary("3")) >= 2


@pytest.mark.parametrize(
    ("rows", "given", "says"),
    [
        (
            [{"id": canary("a")}] * 2,
            {"id_column": "id"},
            "id_column: rows 0 and 1 have the same value in ",
        ),
        ([line(canary("a"), chat())] * 2, OF_LINES, "source: lines 1 and 2 have the same custom_id; "),
        (
            [canary("torn")] * 2,
            OF_ROWS,
            "none of the first 2 lines of .* is a row: the line is not JSON",
        ),
        (
            [{"id": canary(name), "text": "x", "system": "", "sampling": canary(name)} for name in "ab"],
            OF_ROWS,
            "makes a request; the first fails in step 'template': a text of the row is not JSON.",
        ),
    ],
)
def test_a_refused_input_is_not_quoted(job: Job, rows: list[Any], given: dict[str, Any], says: str) -> None:
    job.run(rows, **given)
    with pytest.raises(RaybatchError, match=says):
        raise job.error or AssertionError("it was not refused")
    assert found_in(job.shown()) == []


CHAT = [{"role": "user", "content": canary("chat")}]
OTHER_REQUESTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "messages": (
        [
            *({"m": one} for one in (CHAT, canary("text"), [], None)),
            {"m": [{"role": canary("role"), "content": "x"}]},
            {"m": [{"content": canary("content")}]},
            {"m": [{"role": "user"}]},
            {"m": [{"role": "user", "content": {canary("key"): 1}}]},
            {"m": [{"role": "user", "content": [{"type": canary("type")}]}]},
            {"m": [{"from": canary("from"), "value": canary("value")}]},
        ],
        {"messages_column": "m"},
    ),
    "adapters": (
        [{"text": canary("text"), "a": canary("adapter")}, {"text": "x", "a": ""}],
        {"prompt": "{row.text}", "adapter_column": "a", "adapters": {"one": "/adapters/one"}},
    ),
    "documents": (
        [
            {"q": canary("query"), "d": one}
            for one in ([canary("document")], canary("text"), [], [canary("a"), 1])
        ],
        {"model_task": "score", "query": "{row.q}", "documents_column": "d"},
    ),
    "vectors": (
        [{"text": one} for one in (canary("text"), " ", None, f"{canary('long')} " * 99)],
        {"model_task": "embed", "prompt": "{row.text}"},
    ),
    "sampling": (
        [
            {"text": canary("text"), "s": one}
            for one in (
                {"structured_outputs": {"json": canary("schema")}},
                {"structured_outputs": {"json": canary("schema"), canary("key"): 1}},
                {"logit_bias": {canary("token"): 1}},
                {"stop": [1, canary("stop")]},
                {"n": canary("n")},
                f"{{{canary('torn')}",
            )
        ],
        {"prompt": "{row.text}", "sampling_column": "s"},
    ),
    "cut": (
        [{"text": canary("text")}],
        {"prompt": "{row.text} b c", "sampling": {"max_tokens": 1}, "on_truncated": "error"},
    ),
}


@pytest.mark.parametrize("given", [{"max_error_fraction": 1.0}, {}])
@pytest.mark.parametrize("name", OTHER_REQUESTS)
def test_no_kind_of_request_is_quoted(job: Job, name: str, given: dict[str, Any]) -> None:
    rows, asked = OTHER_REQUESTS[name]
    job.run(rows, **asked, **given)
    assert (job.error is None) == bool(given)
    assert found_in(job.shown()) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            f"{CANARY}-1,{CANARY}-2\n1,x\n",
            "prompt: the source has no column 'text'; if a file has no header, ",
        ),
        (f"{CANARY},{CANARY}\n1,x\n", "has a column 2 times; rename all but one"),
        (f'id,text\n1,"{CANARY}\n2,x\n', "ends inside a quoted field of the row that begins in line 2"),
        (f"id,text\n1,{CANARY}\xff,x\n2,{CANARY}\n", ""),
    ],
)
def test_rows_of_csv_files_are_not_quoted(job: Job, content: str, says: str) -> None:
    job.run_file("in.csv", content.encode("latin-1"), prompt="{row.text}", max_error_fraction=1.0)
    assert says in str(job.error)
    assert (job.error is None) == (not says)
    assert found_in(job.shown()) == []


def test_an_error_of_a_library_is_named_and_not_quoted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow, for one, quotes the value that it can't convert."""

    def generate(_: EchoEngine, encoded: Any) -> Any:
        raise LookupError(f"no such thing: {encoded}")

    monkeypatch.setattr(EchoEngine, "generate", generate)
    job.run([{"id": canary("a"), "text": canary("text")}], prompt="{row.text}", id_column="id")
    assert job.error is not None
    assert job.error.failure_class is FailureClass.INTERNAL
    assert str(job.error).startswith("LookupError, whose text is left out with report_samples=0")
    shown = dict(job.shown())
    assert "in generate" in shown["error"]  # where it was raised
    assert found_in(shown.items()) == []


def test_a_flaw_of_the_report_is_not_quoted(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def flawed(*_: object) -> None:
        raise ValueError(canary("flaw"))

    monkeypatch.setattr("airflow_provider_raybatch.job.output.tally.answers_in", flawed)
    monkeypatch.setattr("airflow_provider_raybatch.job.output.tally.CountedAnswers.add", flawed)
    job.run([{"text": canary("text")}], prompt="{row.text}")
    warnings = [event.text() for event in job.events if "the report lacks" in event.text()]
    assert len(warnings) == 1
    assert found_in(job.shown()) == []


@pytest.mark.parametrize(("is_lines", "where"), [(False, "manifest.json"), (True, "event notice")])
def test_with_samples_rows_are_quoted(job: Job, is_lines: bool, where: str) -> None:
    """As by default: without it, the other tests would pass if nothing quoted rows."""
    given = OF_LINES if is_lines else OF_ROWS
    rows = canary_lines() if is_lines else canary_rows()
    job.run(rows, **given, max_error_fraction=1.0, report_samples=10)
    assert {one.partition(":")[0] for one in found_in(job.shown())} >= {"report.json", where}


@pytest.mark.parametrize("given", [{"max_error_fraction": 1.0}, {"max_errors": 1}])
@pytest.mark.parametrize("asked", [{}, {"response_format": "json_object"}])
@pytest.mark.parametrize("is_in_steps", [False, True])
def test_what_opens_the_file_of_a_url_is_shown_nowhere(
    job: Job, given: dict[str, Any], asked: dict[str, Any], is_in_steps: bool
) -> None:
    url = f"https://me:{canary('login')}@host.example/a/cat.png?X-Amz-Signature={canary('query')}"
    texts = ["x", "y " * 986, "y " * 236, "BREAK", "BREAK " + "y " * 980]  # cut within the login, too
    rows = [
        {"id": f"{text[:5]} {number} {url}", "text": f"{text}{url}", "all": {url: [url, {"a": url}]}}
        for number, text in enumerate([*texts, *["x"] * 3])
    ]
    steps = [{"name": "draft", "prompt": "{row.text}"}, {"name": "end", "prompt": "{row.text}", **asked}]
    one = {"steps": steps} if is_in_steps else {"prompt": "{row.text}", **asked}
    torn = f'{{"text": "{url}'
    engine = {"fail_pattern": "BREAK"}
    job.run([*rows, torn], **one, **given, id_column="id", engine_args=engine, report_samples=20)
    shown = job.shown()
    place = next(where for where, _ in shown if where.endswith("report.json"))
    assert "https://host.example/a/cat.png" in dict(shown)[place]
    card = dataset_card(parse_report(job.out.read(place), place))
    assert found_in([*shown, ("card", card)]) == []


def test_what_a_killed_job_left_is_reported_without_rows(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "prepare", lambda *_: 1 / 0)
    monkeypatch.setattr(driver.JobPhases, "report_failure", lambda *_: None)
    job.run(canary_rows(), **OF_ROWS, max_error_fraction=1.0)
    assert "ZeroDivisionError" in str(job.error)
    monkeypatch.undo()
    report = report_of_run(job.out, submitted().submission.task)
    assert report is not None
    assert {group.step: group.reason for group in report.failures}["parse"] == "the response is not JSON"
    assert found_in([("report", report.model_dump_json())]) == []
