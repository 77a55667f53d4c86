# SPDX-License-Identifier: Apache-2.0
"""What the manifest says of answers that were there: their figures are those of the engine's own log."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.phases import generating, publishing
from tests.support.engine_log import engines
from tests.support.reading import as_jsonl
from tests.support.specs import TASK
from tests.support.whole_job import attempt

from .place import GREEDY, Place

ROWS = [{"text": f"text {number} of some words"} for number in range(5)]
DRAFT: dict[str, Any] = {"name": "draft", "prompt": "draft {row.text}"}
JUDGE: dict[str, Any] = {"name": "judge", "prompt": "judge {row.draft_response}"}


def judge(word: str) -> dict[str, Any]:
    return {**JUDGE, "prompt": f"{word} {{row.draft_response}}"}


def end(word: str) -> dict[str, Any]:
    return {"name": "end", "prompt": f"{word} {{row.judge_response}}"}


class Jobs:
    """Jobs of one source and one destination; those of one run are its attempts."""

    def __init__(self, place: Place, rows: list[dict[str, Any]]) -> None:
        self.place, self.root = place, place.root
        self._source = place.root / "in.jsonl"
        self._source.write_bytes(as_jsonl(rows))
        self._words = 0

    def run(self, run: str, number: int, steps: list[dict[str, Any]], **fields: Any) -> BatchManifest:
        """Run a job, and compare its figures with what its engine has generated."""
        manifest = self.ran(run, number, steps, **fields)
        self.assert_figures(manifest)
        return manifest

    def ran(self, run: str, number: int, steps: list[dict[str, Any]], **fields: Any) -> BatchManifest:
        """Run a job."""
        folder = self.place.folder
        log = {"request_log": str(self.root / "log"), **fields.pop("engine_args", {})}
        submission = {"task": TASK, "run_token": run, "submission_id": f"raybatch-{run}-{number}"}
        asked = {"submission": submission, "engine_args": log, "sampling": GREEDY, "steps": steps, **fields}
        uri = attempt(folder, number, str(self._source), **asked).manifest_uri
        return parse(BatchManifest, folder.read(uri.removeprefix(f"{folder.uri}/")))

    def generated(self) -> int:
        """Words that were generated since the last call: an echo has as many as it is asked."""
        asked = [text for engine in engines(self.root / "log") for text, _ in engine.generated]
        words = sum(len(text.split()) for text in asked)
        new, self._words = words - self._words, words
        return new

    def assert_figures(self, manifest: BatchManifest) -> None:
        steps, savings, tokens = manifest.steps or [], manifest.savings, manifest.tokens
        assert savings is not None
        assert manifest.tokens_generated == self.generated()
        assert manifest.tokens_saved == sum(step.tokens_saved for step in steps)
        assert savings.resumed + savings.reused >= manifest.tokens_saved
        assert tokens.input + tokens.output - manifest.tokens_saved <= (manifest.tokens_paid or 0)
        for step in steps:
            assert step.resumed + step.reused <= step.ok + step.rejected
            assert step.tokens_saved <= step.input_tokens + step.output_tokens

    def parts(self) -> list[Path]:
        """Of all steps and jobs."""
        folder = Path(self.place.folder.uri.removeprefix("file://"))
        return sorted((folder / layout.PARTS).rglob("*.parquet"))


@pytest.fixture
def jobs(place: Place) -> Jobs:
    return Jobs(place, ROWS)


def drafts(manifest: BatchManifest) -> int:
    """Input and output tokens of the first step."""
    draft = (manifest.steps or [])[0]
    return draft.input_tokens + draft.output_tokens


@pytest.mark.parametrize("reuse", [False, True], ids=["parts", "store"])
def test_answers_of_another_run_are_saved(place: Place, reuse: bool) -> None:
    jobs = Jobs(place, ROWS)
    store = {"reuse": str(place.root / "store")} if reuse else {}
    assert jobs.run("a", 0, [DRAFT, JUDGE], **store).tokens_saved == 0
    if reuse:
        place.folder = type(place.folder)(str(place.root / "elsewhere"))
    again = jobs.run("b", 0, [DRAFT, judge("doubt")], **store)
    assert again.tokens_saved == drafts(again)
    assert again.savings is not None
    assert (again.savings.reused if reuse else again.savings.resumed) == drafts(again)
    draft, other = again.steps or []
    assert [(one.resumed, one.reused) for one in (draft, other)] == [(0, 5) if reuse else (5, 0), (0, 0)]
    third = jobs.run("c", 0, [DRAFT, JUDGE], **store)
    assert (third.tokens_paid, third.tokens_generated) == (0, 0)
    assert third.tokens_saved == third.tokens.input + third.tokens.output


def test_a_retry_saves_nothing_that_its_run_has_paid_for(jobs: Jobs) -> None:
    jobs.run("a", 0, [DRAFT, JUDGE])
    again = jobs.run("a", 1, [DRAFT, judge("doubt")])
    assert again.savings is not None
    assert (again.tokens_saved, again.savings.resumed) == (0, drafts(again))


def test_a_job_that_begins_anew_knows_what_was_there(jobs: Jobs) -> None:
    """After a restart of the head node, ids of Ray's jobs may come again."""
    jobs.run("a", 0, [DRAFT, JUDGE])
    again = jobs.run("a", 0, [DRAFT, judge("doubt")])
    assert [step.resumed for step in again.steps or []] == [5, 0]


def test_answers_that_are_there_are_not_stored_beside_them(jobs: Jobs) -> None:
    store = str(jobs.root / "store")
    jobs.run("a", 0, [DRAFT, JUDGE, end("end")], reuse=store)
    written = []
    for run in "bcd":
        before = len(jobs.parts())
        found = jobs.run(run, 0, [DRAFT, JUDGE, end(run)], reuse=store)
        written.append(len(jobs.parts()) - before)
        assert [(step.resumed, step.reused) for step in found.steps or []] == [(5, 0), (5, 0), (0, 0)]
    assert len(set(written)) == 1  # those of the last step


@pytest.mark.parametrize("fields", [{"limit": 2}, {}])
def test_a_row_counts_once(jobs: Jobs, fields: dict[str, Any]) -> None:
    """Whatever the parts have: rows beyond a limit, or a row twice."""
    jobs.run("a", 0, [DRAFT, JUDGE])
    for path in jobs.parts():
        copy = path.parent.parent / f"{path.parent.name.split('~')[0]}~00000000"
        copy.mkdir(exist_ok=True)
        shutil.copy(path, copy / path.name)
    again = jobs.run("b", 0, [DRAFT, judge("doubt")], **fields)
    assert again.tokens_saved == drafts(again)
    assert (again.steps or [])[0].resumed == again.counts.ok == fields.get("limit", 5)


def test_answers_that_were_damaged_are_paid_for_again(jobs: Jobs) -> None:
    jobs.run("a", 0, [DRAFT, JUDGE])
    for path in jobs.parts():
        if "draft_response" not in str(pq.read_schema(path)):
            damage(path)
    again = jobs.run("b", 0, [DRAFT, judge("doubt")])
    assert (again.tokens_saved, (again.steps or [])[0].resumed) == (0, 0)


def damage(path: Path) -> None:
    """Change a byte of the responses."""
    group = pq.read_metadata(path).row_group(0)
    columns = (group.column(place) for place in range(group.num_columns))
    column = next(one for one in columns if one.path_in_schema == "output.response")
    begin = column.dictionary_page_offset or column.data_page_offset
    content = bytearray(path.read_bytes())
    content[begin + column.total_compressed_size - 3] ^= 0xFF
    path.write_bytes(content)


def test_an_old_part_that_is_gone_ends_no_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.run("a", 0, [DRAFT, JUDGE])
    folder = Path(jobs.place.folder.uri.removeprefix("file://"))
    prepare = publishing.prepare

    def without(*given: Any) -> Any:
        for step in given[-1]:
            for part in step.parts:
                (folder / part.path).unlink(missing_ok=True)
        return prepare(*given)

    monkeypatch.setattr(publishing, "prepare", without)
    again = jobs.ran("b", 0, [DRAFT, judge("doubt")])
    assert (again.counts.ok, again.tokens_saved) == (5, 0)  # what can't be read is not known to be saved


def test_rows_that_fail_later_have_saved_their_answers(jobs: Jobs) -> None:
    jobs.run("a", 0, [DRAFT, JUDGE])
    fails = {"engine_args": {"fail_pattern": "doubt draft text 1"}, "max_errors": 5}
    again = jobs.run("b", 0, [DRAFT, judge("doubt")], **fails)
    assert (again.counts.error, again.tokens_saved) == (1, drafts(again))


def test_reasoning_is_counted_in_all_steps(jobs: Jobs) -> None:
    reasons = {"engine_args": {"reasoning_parser": "x"}}
    manifest = jobs.place.job(0, ROWS, steps=[DRAFT, JUDGE], sampling=GREEDY, **reasons)
    rows = jobs.place.rows(manifest)
    of_all = sum(row[f"{name}_reasoning_tokens"] for row in rows for name in ("draft", "judge"))
    assert manifest.tokens.reasoning == of_all > 0


def test_progress_begins_with_the_answers_that_are_there(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(place, [{"text": f"text {number}"} for number in range(10)])
    store = str(place.root / "store")
    begun: list[dict[str, int]] = []
    answered = generating._answered
    monkeypatch.setattr(generating, "_answered", lambda *given: begun.append(answered(*given)) or begun[-1])
    jobs.run("z", 0, [DRAFT, JUDGE, end("z")], reuse=store, limit=4)
    jobs.run("a", 0, [DRAFT, JUDGE, end("a")], reuse=store, limit=4)
    jobs.run("b", 0, [DRAFT, JUDGE, end("b")], reuse=store)
    assert begun == [{"draft": 0, "judge": 0}, {"draft": 4, "judge": 4}, {"draft": 4, "judge": 4}]
