# SPDX-License-Identifier: Apache-2.0
"""What is paid for once stays paid for: attempts, changed inputs, equal rows, limits and dying engines."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.execution import pool
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.folder import folder as folder_at
from tests.support.engine_log import engines
from tests.support.s3_server import S3Server

ROWS = 400


class Night:
    """One task, its input and its destination.

    :param s3: where the destination lies; by default in `folder`.
    """

    def __init__(self, folder: Path, s3: S3Server | None = None) -> None:
        self.folder = folder
        self._credentials = None if s3 is None else s3.credentials
        self._place = str(folder) if s3 is None else f"s3://{s3.new_bucket()}"
        self.said: list[Any] = []
        self._submissions = 0
        self._requests = folder / "requests"

    def input(self, texts: Sequence[str]) -> None:
        rows = ({"id": f"r{number}", "text": text} for number, text in enumerate(texts))
        (self.folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(
        self,
        token: str = "token",
        run_id: str = "r1",
        on_commit: Callable[[], None] | None = None,
        stops: bool = False,
        **fields: Any,
    ) -> BatchManifest:
        """A new submission of the task, of the run that `token` names.

        :param run_id: another one is another task, with a folder of its own.
        :param on_commit: called when the job says that it has committed.
        :param stops: whether the job is stopped when it says that rows are done.
        """
        from airflow_provider_raybatch.job.driver import run

        document: dict[str, Any] = {
            "source": [str(self.folder / "in.jsonl")],
            "prompt": "{row.text}",
            "model": "echo",
            "engine": "echo",
            "sampling": {"temperature": 0},
            "destination": self._uri("out" if run_id == "r1" else run_id),
            "submission": {
                "task": {"dag_id": "nightly", "run_id": run_id, "task_id": "label"},
                "run_token": token,
                "submission_id": f"raybatch-{token}-{self._submissions}",
            },
            **fields,
        }
        self._submissions += 1
        document["engine_args"] = {**document.get("engine_args", {}), "request_log": str(self._requests)}
        self.said.clear()
        spec = parse(BatchInferenceSpec, json.dumps(document))
        assert spec.submission is not None

        def say(event: Any) -> None:
            self.said.append(event)
            if event.event == "committed" and on_commit is not None:
                on_commit()
            if event.event == "progress" and event.done and stops:
                control.stop()  # as Ray's SIGTERM does, which comes to this thread

        control = Control(spec, say)
        summary = run(spec, spec.submission, say, Secrets(aws=self._credentials), control)
        folder, _, name = summary.manifest_uri.rpartition("/")
        return parse(BatchManifest, folder_at(folder, self._credentials).read(name))

    def _uri(self, name: str) -> str:
        return f"{self._place}/{name}"

    def refused(self, ends: FailureClass, **fields: Any) -> str:
        with pytest.raises(RaybatchError) as caught:
            self.run(**fields)
        assert caught.value.failure_class is ends, caught.value
        return str(caught.value)

    def kept(self) -> int:
        """Good rows in all parts so far."""
        folder = self.out
        paths = [entry.path for entry in folder.list("_raybatch/parts") if entry.path.endswith(".parquet")]
        tables = (pq.read_table(io.BytesIO(folder.read(path)), columns=["ok"]) for path in paths)
        return sum(sum(table["ok"].to_pylist()) for table in tables)

    def asked(self, manifest: BatchManifest) -> int:
        """Requests that the engines of the submission that made a manifest have started, by their own log."""
        return sum(
            len(engine.asked)
            for engine in engines(self._requests)
            if engine.submission == manifest.submission_id
        )

    def asked_in_all(self) -> int:
        """Requests that all engines have started so far."""
        return sum(len(engine.asked) for engine in engines(self._requests))

    @property
    def out(self) -> Folder:
        return folder_at(self._uri("out"), self._credentials)


def rows_of(manifest: BatchManifest, folder: Folder | None = None) -> list[dict[str, Any]]:
    folder = folder or folder_at(manifest.uri.rpartition("/data/")[0])
    paths = (f"{manifest.uri.removeprefix(folder.uri)}/{file.path}".lstrip("/") for file in manifest.files)
    tables = [pq.read_table(io.BytesIO(folder.read(path))) for path in paths]
    return [row for table in tables for row in table.to_pylist()]


def answers(manifest: BatchManifest, folder: Folder | None = None) -> dict[str, str]:
    rows = rows_of(manifest, folder)
    assert len({row["id"] for row in rows}) == len(rows) == manifest.counts.ok
    return {row["id"]: row["response"] for row in rows}


@pytest.fixture
def night(tmp_path: Path, ray_here: Any) -> Night:
    return Night(tmp_path)


def test_equal_greedy_requests_are_asked_once(night: Night) -> None:
    texts = [f"text {number % 40}" for number in range(ROWS)]
    night.input(texts)
    manifest = night.run()
    assert answers(manifest) == {f"r{number}": text for number, text in enumerate(texts)}
    assert night.asked(manifest) == 40
    assert (manifest.counts.ok, manifest.counts.duplicates) == (ROWS, ROWS - 40)


def test_answers_that_the_store_has_lost_are_asked_for_at_full_size(night: Night) -> None:
    night.input([f"text {number}" for number in range(ROWS)])
    reuse = {"reuse": str(night.folder / "store")}
    first = night.run(run_id="r0", **reuse)
    for path in (night.folder / "store").glob("v1/data/**/*.parquet"):
        path.unlink()
    again = night.run(run_id="r2", **reuse)
    assert night.asked(again) == again.counts.ok == ROWS
    assert again.plan["rows_per_chunk"] == first.plan["rows_per_chunk"]


def test_equal_requests_are_each_asked_where_answers_may_differ(night: Night) -> None:
    night.input(["same words"] * 10)
    assert night.asked(night.run(sampling={"temperature": 1.0})) == 10
    assert night.asked(night.run(token="again", sampling={"temperature": 0}, deduplicate=False)) == 10


def test_a_failure_is_shared_like_an_answer(night: Night) -> None:
    night.input(["bad", "good", "bad", "bad"])
    echo = {"engine": "echo", "engine_args": {"fail_pattern": "bad"}}
    manifest = night.run(**echo, max_error_fraction=1.0)
    assert (manifest.counts.ok, manifest.counts.error, night.asked(manifest)) == (1, 3, 2)


def test_of_a_changed_input_only_the_changed_rows_are_asked(night: Night) -> None:
    texts = [f"text {number}" for number in range(ROWS)]
    night.input(texts)
    first = night.run()
    changed = [f"new {text}" if number % 100 == 7 else text for number, text in enumerate(texts)][:-50]
    night.input(changed)
    second = night.run(token="cleared")
    assert answers(second) == {f"r{number}": text for number, text in enumerate(changed)}
    assert night.asked(first) == ROWS
    assert night.asked(second) == 4
    assert second.counts.resumed == len(changed) - 4
    # Last night's dataset is still what it was.
    assert len(answers(first)) == ROWS


def test_a_clear_keeps_what_still_holds_or_pays_again_when_asked_to(night: Night) -> None:
    night.input([f"text {number}" for number in range(ROWS)])
    assert night.asked(night.run()) == ROWS
    assert night.asked(night.run(token="cleared")) == 0
    assert night.asked(night.run(token="anew", on_clear="regenerate")) == ROWS
    assert night.asked(night.run(token="other", sampling={"temperature": 0, "max_tokens": 5})) == ROWS


def test_failed_rows_are_asked_again_but_not_for_ever(night: Night) -> None:
    night.input([f"text {number}" for number in range(20)])
    failing = {"engine": "echo", "engine_args": {"fail_pattern": "text 7"}}
    limits = {"max_error_fraction": 0.01, "max_row_attempts": 2}
    night.refused(FailureClass.TOO_MANY_ERRORS, **failing, **limits)
    assert night.kept() == 19
    night.refused(FailureClass.TOO_MANY_ERRORS, **failing, **limits)
    assert night.kept() == 19
    # Twice is enough: the third attempt asks nobody, and the row is a dead letter.
    manifest = night.run(**failing, max_error_fraction=0.1, max_row_attempts=2)
    assert (night.asked(manifest), manifest.counts.ok, manifest.counts.error) == (0, 19, 1)
    mended = night.run(token="cleared", max_row_attempts=3)
    assert (night.asked(mended), mended.counts.ok) == (1, 20)


def test_a_row_that_kills_the_engine_is_found_and_all_others_answered(night: Night) -> None:
    texts = ["kill" if number == 21 else f"text {number}" for number in range(32)]
    night.input(texts)
    engine = {"engine": "echo", "engine_args": {"kill_pattern": "kill"}, "replicas": 1, "batch_size": 16}
    manifest = night.run(**engine, max_error_fraction=0.1)
    assert answers(manifest) == {f"r{number}": text for number, text in enumerate(texts) if text != "kill"}
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    letter = json.loads(file.read_text())
    assert letter["ordinal"] == 21
    assert "dies of this row" in letter["reason"]
    restarts = len(manifest.replicas) - 1
    assert restarts <= math.ceil(math.log2(32)) + 1


def test_a_row_that_kills_the_engine_fails_a_job_that_allows_no_failure(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    consume = pool._consume

    def consume_and_tell(*args: Any) -> None:
        consume(*args)
        ended.set()

    monkeypatch.setattr(pool, "_consume", consume_and_tell)
    # The driver looks a first time, and not again before all is over.
    monkeypatch.setattr(pool, "_check_moving", lambda *_: ended.wait(200))
    night.input(["a", "kill", "b"])
    engine = {"engine": "echo", "engine_args": {"kill_pattern": "kill"}, "replicas": 1}
    sentence = night.refused(FailureClass.POISON_ROW, **engine)
    assert sentence.startswith("max_error_fraction: 1 of 1 failed rows killed the engine each time")


def test_an_engine_that_dies_of_everything_fails_the_job(night: Night) -> None:
    night.input([f"kill {number}" for number in range(200)])
    engine = {"engine": "echo", "engine_args": {"kill_pattern": "kill"}, "replicas": 1, "max_restarts": 1}
    sentence = night.refused(FailureClass.ENGINE_DEAD, **engine, max_error_fraction=1.0)
    assert sentence.startswith("max_restarts: the engine died again and again")


LIMITS: dict[str, tuple[Callable[[], dict[str, Any]], FailureClass, str]] = {
    "tokens": (lambda: {"max_tokens_total": 100}, FailureClass.LIMIT_REACHED, "of 100 allowed, after"),
    "deadline": (
        lambda: {"deadline": time.time() + 8},
        FailureClass.TIMEOUT,
        "the job's deadline passed after",
    ),
    "stop": (dict, FailureClass.CANCELLED, "the job was stopped after"),
}


@pytest.mark.parametrize(("limit", "on_s3"), [("tokens", False), ("deadline", False), ("stop", True)])
def test_a_limit_stops_the_job_and_keeps_what_is_done(
    tmp_path: Path, ray_here: Any, s3: S3Server, limit: str, on_s3: bool
) -> None:
    night = Night(tmp_path, s3 if on_s3 else None)
    texts = [f"text {number}" for number in range(ROWS)]
    night.input(texts)
    slowly = {
        "engine": "echo",
        "engine_args": {"seconds_per_token": 0.5, "max_num_seqs": 20},
        "replicas": 1,
        "batch_size": 200,
    }
    made, ends, telling = LIMITS[limit]
    sentence = night.refused(ends, **slowly, **made(), stops=limit == "stop")
    assert telling in sentence
    kept = night.kept()
    assert 0 < kept < ROWS
    # What it says is done is written, though no row has waited for flush_interval.
    assert int(re.findall(r" after ([\d,]+) of 400 rows", sentence)[0]) <= kept
    assert not night.out.list("data")
    manifest = night.run(engine="echo")
    assert answers(manifest, night.out) == {f"r{number}": text for number, text in enumerate(texts)}
    assert night.asked(manifest) == ROWS - kept
    assert night.asked_in_all() <= ROWS + 20  # again, what was in the engine's slots
    assert manifest.counts.resumed == kept


class TestNights:
    """Runs with folders of their own, which share a response store."""

    @pytest.fixture
    def reuse(self, night: Night) -> dict[str, Any]:
        return {"reuse": str(night.folder / "store")}

    def test_only_changed_rows_are_paid_for(self, night: Night, reuse: dict[str, Any]) -> None:
        texts = [f"text {number}" for number in range(ROWS)]
        night.input(texts)
        first = night.run(**reuse)
        changed = [f"new {text}" if number % 100 == 7 else text for number, text in enumerate(texts)]
        night.input(changed)
        second = night.run(run_id="r2", **reuse)
        assert answers(second) == {f"r{number}": text for number, text in enumerate(changed)}
        paid = sum(replica.output_tokens for replica in second.replicas)
        assert (night.asked(second), second.counts.reused) == (4, ROWS - 4)
        assert paid <= 0.011 * second.tokens.output + 4
        payers = {row["id"]: row["reused_from"] for row in rows_of(second)}
        assert {payers[f"r{number}"] for number in range(ROWS) if number % 100 != 7} == {first.submission_id}
        assert {payers[f"r{number}"] for number in range(7, ROWS, 100)} == {None}
        # What the second night paid for is there in the third.
        assert night.asked(night.run(run_id="r3", **reuse)) == 0

    def test_a_clear_that_regenerates_takes_nothing_from_the_store(
        self, night: Night, reuse: dict[str, Any]
    ) -> None:
        night.input(["a", "b"])
        anew: dict[str, Any] = {"on_clear": "regenerate", **reuse}
        assert night.asked(night.run(**anew)) == 2
        assert night.asked(night.run(token="cleared", **anew)) == 2
        # But another night does.
        assert night.asked(night.run(run_id="r2", **anew)) == 0

    def test_another_sampling_is_another_question(self, night: Night, reuse: dict[str, Any]) -> None:
        night.input([f"text {number}" for number in range(50)])
        night.run(**reuse)
        other = night.run(run_id="r2", sampling={"temperature": 0, "max_tokens": 9}, **reuse)
        assert (night.asked(other), other.counts.reused) == (50, 0)

    def test_an_error_is_no_answer(self, night: Night, reuse: dict[str, Any]) -> None:
        night.input(["good", "bad"])
        failing = {"engine": "echo", "engine_args": {"fail_pattern": "bad"}}
        first = night.run(**failing, max_error_fraction=0.5, **reuse)
        assert (first.counts.ok, first.counts.error) == (1, 1)
        second = night.run(run_id="r2", **reuse)
        assert (night.asked(second), second.counts.ok, second.counts.reused) == (1, 2, 1)

    def test_sampled_requests_keep_an_answer_each(self, night: Night, reuse: dict[str, Any]) -> None:
        night.input(["the same words", "the same words", "others"])
        sampled: dict[str, Any] = {"sampling": {"temperature": 1.0}, **reuse}
        assert night.asked(night.run(**sampled)) == 3
        night.input(["the same words"] * 3)
        again = night.run(run_id="r2", **sampled)
        assert (night.asked(again), again.counts.reused) == (1, 2)

    def test_all_completions_come_back(self, night: Night, reuse: dict[str, Any]) -> None:
        night.input(["two words"])
        several: dict[str, Any] = {"sampling": {"temperature": 0, "n": 3}, **reuse}
        first, second = night.run(**several), night.run(run_id="r2", **several)
        assert night.asked(second) == 0
        assert rows_of(first)[0]["completions"] == rows_of(second)[0]["completions"]
        assert len(rows_of(second)[0]["completions"]) == 3

    def test_a_retry_stores_after_a_kill_behind_the_commit(self, night: Night, reuse: dict[str, Any]) -> None:
        night.input([f"text {number}" for number in range(20)])

        def kill() -> None:
            assert not list((night.folder / "store").glob("v1/data/**/*.parquet"))
            raise SystemExit("killed between the commit and the store")

        with pytest.raises(SystemExit):
            night.run(on_commit=kill, **reuse)
        assert night.run(**reuse).counts.ok == 20  # the manifest of the killed attempt
        assert night.asked_in_all() == 20
        assert night.said[-1].event == "committed"
        assert night.asked(night.run(run_id="r2", **reuse)) == 0

    def test_a_store_that_breaks_after_the_commit_is_a_warning(
        self, night: Night, reuse: dict[str, Any]
    ) -> None:
        night.input(["a", "b"])

        def break_store() -> None:
            shutil.rmtree(night.folder / "store")
            (night.folder / "store").write_text("in the way")

        assert answers(night.run(on_commit=break_store, **reuse)) == {"r0": "a", "r1": "b"}
        assert night.said[-1].level == "warning"
        assert "The dataset is complete" in night.said[-1].message

    def test_a_store_that_nobody_can_write_is_refused_at_once(self, night: Night) -> None:
        night.input(["a"])
        (night.folder / "file").write_text("not a folder")
        sentence = night.refused(FailureClass.USER_ERROR, reuse=str(night.folder / "file/store"))
        assert sentence.startswith("reuse: ")


def test_ids_name_the_rows(night: Night) -> None:
    night.input(["good", "bad"])
    echo = {"engine": "echo", "engine_args": {"fail_pattern": "bad"}}
    named = {"source": [str(night.folder / "in.jsonl")], "id_column": "id"}
    manifest = night.run(**echo, **named, max_error_fraction=0.5)
    (file,) = Path(manifest.dead_letter_uri or "").iterdir()
    assert json.loads(file.read_text())["id"] == "r1"
    night.folder.joinpath("in.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    sentence = night.refused(FailureClass.USER_ERROR, token="twins", **named)
    assert sentence.startswith("id_column: rows 0 and 1 both have '1' in column 'id'")
    night.folder.joinpath("in.jsonl").write_text('{"id": 1, "text": "a"}\n{"text": "b"}\n')
    sentence = night.refused(FailureClass.USER_ERROR, token="nobody", **named)
    assert sentence.startswith("id_column: row 1 has no value in column 'id'")


def test_a_response_that_takes_longer_than_any_guard_is_waited_for_while_its_tokens_come(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own guard would end it: it counts chunks, and of this job's one none is finished in time."""
    import ray

    context = ray.data.DataContext.get_current()
    monkeypatch.setattr(context, "execution_no_progress_timeout_s", 2)
    slow = {"engine": "echo", "engine_args": {"seconds_per_token": 0.25}}
    night.input(["word " * 104])  # 26 s
    manifest = night.run(**slow, no_progress_timeout=20)
    assert manifest.counts.ok == 1
    assert context.execution_no_progress_timeout_s == -1
