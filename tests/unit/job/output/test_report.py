# SPDX-License-Identifier: Apache-2.0
"""The report of a run, and what the run took."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.output.report import _stats, explaining
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.specs import submitted
from tests.support.tools import ADD
from tests.support.whole_job import attempt, numbered, without_cluster

TOKEN = f"hf_{'aB3' * 10}"


@pytest.mark.parametrize(
    "given",
    [
        {"credentials": {"user": "s3cret", "more": ["s3cret"]}},
        {"hf_token": "s3cret", "headers": {"Authorization": ["Bearer s3cret"], "Cookie": "s3cret"}},
        {"aws_access_key_id": "s3cret", "private_key": "s3cret", "passphrase": "s3cret", "auth": "s3cret"},
        {"place": "https://me:s3cret@host/models?sig=s3cret"},
        {"hf_overrides": f'{{"key": "{TOKEN}"}}', "more": [TOKEN, "Bearer of hf_names"]},
    ],
)
def test_secrets_in_arguments_are_masked(given: dict[str, object]) -> None:
    shown = str(explaining(submitted(engine_args=given))["engine_args"])
    assert "s3cret" not in shown
    assert TOKEN not in shown
    assert "***" in shown or "https://host/models" in shown


def test_arguments_that_explain_a_result_are_shown() -> None:
    given = {"bos_token": "<s>", "max_model_len": 512, "key_cache": "fp8", "url": "s3://a/b@c?d"}
    assert explaining(submitted(engine_args=given))["engine_args"] == given


def test_what_all_steps_share_explains_a_result() -> None:
    steps = [{"name": "act", "prompt": "{row.a}", "tools": [ADD]}, {"name": "end", "prompt": "{row.a}"}]
    shown = explaining(submitted(steps=steps, tool_call_parser="hermes", sampling={"top_k": 3}))
    assert (shown["tool_call_parser"], shown["sampling"]) == ("hermes", {"top_k": 3})
    assert [step["name"] for step in shown["steps"]] == ["act", "end"]


def test_fields_of_a_schema_are_no_secrets() -> None:
    schema = {"type": "object", "properties": {"cookie": {"type": "string"}, "password": {"type": "boolean"}}}
    shown = explaining(submitted(response_format=schema))["response_format"]
    assert shown["properties"] == schema["properties"]


def test_files_of_a_user_are_not_replaced(
    disk: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cluster(monkeypatch)
    mine = {"report.html": b"<!doctype html>\n<h1>my own</h1>", "report.json": b'{"sales": 3}'}
    for name, content in mine.items():
        disk.write(name, content)
    summary = attempt(disk, 0, numbered(tmp_path / "in.jsonl", 3))
    assert {name: disk.read(name) for name in mine} == mine
    assert summary.report_uri is not None


def test_copies_of_a_report_follow_the_newest_dataset(
    disk: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_cluster(monkeypatch)
    for number, rows in enumerate((3, 4)):
        summary = attempt(disk, number, numbered(tmp_path / "in.jsonl", rows), token=f"{number}")
        folder = str(summary.report_uri).removeprefix(f"{disk.uri}/").rpartition("/")[0]
        for name in ("report.json", "report.html"):
            assert disk.read(name) == disk.read(f"{folder}/{name}")


FIRST = 1_700_000_000.0


@pytest.mark.parametrize(
    ("request_at", "answer_at", "first", "began", "ended"),
    [
        pytest.param(FIRST + 1.5, FIRST + 9.25, FIRST, 1.5, 9.25, id="second replica"),
        pytest.param(0.0, FIRST - 4, FIRST, 0.0, 0.0, id="only rows that fail before the engine"),
        pytest.param(0.0, FIRST, 0.0, 0.0, 0.0, id="no request at all"),
    ],
)
def test_seconds_of_a_replica(
    request_at: float, answer_at: float, first: float, began: float, ended: float
) -> None:
    report = ReplicaProgress("replica", "node", first_request=request_at, last_answer=answer_at, gpus=["3"])
    found = _stats(report, first)
    assert (found.began_seconds, found.ended_seconds, found.gpus) == (began, ended, ["3"])
