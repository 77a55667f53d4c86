# SPDX-License-Identifier: Apache-2.0
"""A preview tells what the job does, and leaves no trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.preview import PlanReport
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.preflight import engine_check, ready
from airflow_provider_raybatch.job.preflight.memory_check import model_sizes
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preview import counters, tokens
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.clusters import DGX, HEAD
from tests.support.faulty_s3 import FaultyS3
from tests.support.model_configs import SHAPES
from tests.support.reading import as_jsonl
from tests.support.s3_server import S3Server
from tests.support.whole_job import attempt, dying_attempt, numbered
from tests.unit.job.preview.conftest import ReportOf

TOLERANT = {"max_error_fraction": 0.9}


def texts(path: Path, *values: str) -> str:
    path.write_bytes(as_jsonl([{"text": value} for value in values]))
    return str(path)


def manifest_at(place: Folder) -> BatchManifest:
    return BatchManifest.model_validate_json(place.read(layout.NEWEST_MANIFEST))


def keys_of_parts(place: Folder) -> dict[int, str]:
    """The request keys that a job has written, by ordinal."""
    found = {}
    for entry in place.list(layout.PARTS):
        if entry.path.endswith(".parquet"):
            path = Path(place.uri) / entry.path
            for row in pq.read_table(path, columns=["ordinal", "key"]).to_pylist():
                found[row["ordinal"]] = row["key"].hex()
    return found


def test_rows_are_shown_as_they_are_asked(tmp_path: Path, report_of: ReportOf) -> None:
    source = texts(tmp_path / "in.jsonl", "a b", "", "\x1b[31mred")
    rows, end = report_of(
        LocalFolder(str(tmp_path / "out")), source, prompt="Say {row.text}", system_prompt="Be brief"
    )
    assert [[(one.role, one.text) for one in row.messages] for row in rows] == [
        [("system", "Be brief"), ("user", "Say a b")],
        [("system", "Be brief"), ("user", "Say ")],
        [("system", "Be brief"), ("user", "Say red")],
    ]
    assert [row.tokens for row in rows] == [5, 3, 4]
    assert (end.rows, end.refusals) == (3, ())
    place = LocalFolder(str(tmp_path / "null"))
    rows, _ = report_of(place, source, prompt="Say {row.text}", on_blank="null")
    assert [(row.ordinal, row.is_skipped, row.key is None) for row in rows] == [
        (0, False, False),
        (1, True, True),
        (2, False, False),
    ]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1}], ids=["greedy", "sampled"])
def test_keys_are_those_of_the_job(tmp_path: Path, report_of: ReportOf, sampling: dict[str, Any]) -> None:
    """Of sampled requests, each repetition has a key of its own."""
    place, source = LocalFolder(str(tmp_path / "out")), texts(tmp_path / "in.jsonl", "a", "b", "a", "a")
    fields = {"prompt": "Say {row.text}", "sampling": sampling, "deduplicate": False}
    rows, _ = report_of(place, source, **fields)
    dying_attempt_with(place, source, fields)
    assert {row.ordinal: row.key for row in rows} == keys_of_parts(place)


def dying_attempt_with(place: LocalFolder, source: str, fields: dict[str, Any]) -> None:
    """Run a job that leaves its parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_provider_raybatch.job.phases.publishing.prepare", lambda *_: 1 / 0)
        with pytest.raises(Exception, match="division"):
            attempt(place, 0, source, **fields)


def test_equal_rows_and_failing_rows_are_named(tmp_path: Path, report_of: ReportOf) -> None:
    source = texts(tmp_path / "in.jsonl", "a", "b", "a", "w " * 50)
    rows, end = report_of(
        LocalFolder(str(tmp_path / "out")),
        source,
        prompt="{row.text}",
        sampling={"temperature": 0},
        engine_args={"max_model_len": 20},
    )
    assert [row.same_as for row in rows] == [None, None, 0, None]
    assert [row.failure for row in rows][:3] == [None] * 3
    assert rows[3].failure == (
        "tokenize: the prompt has 50 tokens and max_model_len is 20, which leaves no room for a response"
    )
    assert end.refusals == ()  # an echo is not asked for its rows before they run


def test_a_sample_is_the_same_for_the_same_seed(tmp_path: Path, report_of: ReportOf) -> None:
    place, source = LocalFolder(str(tmp_path / "out")), numbered(tmp_path / "in.jsonl", 500)
    first, again, other = (report_of(place, source, rows=5, seed=seed)[0] for seed in (1, 1, 2))
    assert first == again != other
    assert [row.messages[0].text for row in first] == [f"Say {row.ordinal}" for row in first]


@pytest.mark.parametrize("how", ["earlier job", "earlier input", "response store"])
def test_answered_rows_are_found(tmp_path: Path, report_of: ReportOf, how: str) -> None:
    place, source, fields = (
        LocalFolder(str(tmp_path / "out")),
        numbered(tmp_path / "in.jsonl", 4),
        dict[str, Any](),
    )
    if how == "earlier job":
        dying_attempt(place, 0, source)
    elif how == "earlier input":
        attempt(place, 0, numbered(tmp_path / "less.jsonl", 3))
    else:
        fields["reuse"] = str(tmp_path / "store")
        attempt(LocalFolder(str(tmp_path / "first")), 0, source, limit=3, **fields)
    rows, _ = report_of(place, source, **fields)
    last = how if how == "earlier job" else None
    assert [row.answered for row in rows] == [how, how, how, last]
    report = report_of(place, source, "plan", **fields)
    assert report.remaining == (0 if how == "earlier job" else 1)


def test_planned_tokens_are_those_of_the_manifest(tmp_path: Path, report_of: ReportOf) -> None:
    """With rows that fail, are equal, or are cut."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(as_jsonl([{"text": "w " * (number % 40)} for number in range(300)]) + b'{"text":\n')
    for on_overlong in ("error", "truncate"):
        place = LocalFolder(str(tmp_path / on_overlong))
        fields = {
            **TOLERANT,
            "prompt": "Say {row.text}",
            "engine_args": {"max_model_len": 32},
            "sampling": {"max_tokens": 8, "temperature": 0},
            "on_overlong": on_overlong,
        }
        report = report_of(place, str(path), "plan", **fields)
        summary = attempt(place, 0, str(path), **fields)
        tokens = report.prompt_tokens
        assert (tokens.rows, tokens.failed) == (301, summary.errors)
        assert tokens.total == manifest_at(place).tokens.input > 0
        assert not tokens.is_sample
        assert report.remaining == 41
        assert report.refusals == ()
    report = report_of(
        place, str(path), "plan", **{**fields, "max_error_fraction": 0.0, "on_overlong": "error"}
    )
    (sentence,) = report.refusals
    assert sentence.startswith("max_error_fraction: 64 of the first 301 rows fail already")


def test_prompts_of_all_steps_are_planned(tmp_path: Path, report_of: ReportOf) -> None:
    """An answer that a step reads counts as one token; conditions on columns of the source hold."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(as_jsonl([{"text": "w " * number} for number in range(5)]))
    several = {"name": "draft", "prompt": "draft {row.text}", "sampling": {"n": 2}}
    steps = [
        several,
        {"name": "judge", "prompt": "is it right {row.draft_response}", "each": "draft"},
        {
            "name": "mend",
            "prompt": "mend {row.text}",
            "when": [["text", "!=", ""], ["judge_response", "==", "x"]],
        },
        {"name": "end", "prompt": "{row.mend_response}"},
    ]
    given = {"steps": steps, "on_blank": "null", "images": []}
    report = report_of(LocalFolder(str(tmp_path / "out")), str(path), "plan", **given)
    counted = {name: (one.rows, one.total, one.longest) for name, one in report.later_steps.items()}
    assert (report.prompt_tokens.rows, report.prompt_tokens.total) == (4, 14)
    assert counted == {"judge": (5, 20, 4), "mend": (4, 14, 5), "end": (5, 5, 1)}
    assert all(not one.cut_offs for one in report.later_steps.values())
    assert report.refusals == ()


def test_a_plan_says_how_it_counted_images(tmp_path: Path, report_of: ReportOf) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(as_jsonl([{"photo": str(tmp_path / "x.png")}]))
    step = {"name": "see", "prompt": "look", "images": "photo"}
    for given in ({"prompt": "look", "images": "photo"}, {"steps": [step]}):
        report = report_of(LocalFolder(str(tmp_path / "out")), str(path), "plan", **given)
        assert "images: each counts as one token, as the echo engine has it" in report.notices
        assert report.prompt_tokens.total == 2


def test_each_size_has_its_reason(tmp_path: Path, report_of: ReportOf) -> None:
    source = numbered(tmp_path / "in.jsonl", 50)
    report = report_of(LocalFolder(str(tmp_path / "out")), source, "plan", rows_in_flight=7)
    sizes = sizes_in(report)
    assert sizes["rows_in_engine"] == ("7", "set by rows_in_flight")
    assert sizes["gpus_per_replica"] == ("0", "the echo engine has no model")
    assert all(reason for _, reason in sizes.values())
    assert (report.rows, report.files, report.bytes) == (50, 1, Path(source).stat().st_size)


@pytest.mark.parametrize("verb", ["preview", "plan"])
def test_a_missing_model_is_one_sentence(
    tmp_path: Path, report_of: ReportOf, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """What counts tokens would say it once more, in the words of the hub's client."""

    def refuse(*_: object) -> ModelCheck:
        raise PreflightError("model: nothing is at '/no/such/model'.")

    def cannot_load(*_: object) -> object:
        raise PreflightError("model: '/no/such/model' can't be loaded (Repo id must be in the form).")

    monkeypatch.setattr(ready, "check_engine", refuse)
    monkeypatch.setattr(engine_check, "vllm_is_here", lambda: True)
    monkeypatch.setattr(counters, "load_model", cannot_load)
    source = numbered(tmp_path / "in.jsonl", 5)
    fields = {"engine": "vllm", "model": "/no/such/model"}
    found = report_of(LocalFolder(str(tmp_path / "out")), source, verb, **fields)
    end = found if verb == "plan" else found[1]
    assert end.refusals == ("model: nothing is at '/no/such/model'.",)


def check_finds(patch: pytest.MonkeyPatch, node: dict[str, float], shape: str, **found: int) -> None:
    """Let the check find these sizes on a cluster with this node, and words count as tokens."""
    checked = ModelCheck(sizes=model_sizes(SHAPES[shape], None, None), **found)
    patch.setattr(ready, "check_engine", lambda *_: checked)
    patch.setattr(engine_check, "vllm_is_here", lambda: True)
    patch.setattr(tokens, "VllmCounter", lambda job, _: counters.EchoCounter(job))
    patch.setattr(cluster_view, "view", lambda: ClusterView((HEAD, node)))


def sizes_in(report: PlanReport) -> dict[str, tuple[str, str]]:
    return {size.name: (size.value, size.reason) for size in report.sizes}


def test_a_model_that_no_gpu_holds_is_refused(
    tmp_path: Path, report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_finds(monkeypatch, DGX, "70B")
    source = numbered(tmp_path / "in.jsonl", 5)
    fields = {"engine": "vllm", "model": "acme/large", "engine_args": {"max_model_len": 8192}}
    report = report_of(LocalFolder(str(tmp_path / "out")), source, "plan", **fields)
    assert [one.partition(" of ")[0] for one in report.refusals] == ["model: the weights"]
    assert sizes_in(report)["model"][0] == "does not fit"
    assert "tensor_parallel_size=" in sizes_in(report)["parallel"][0]


def test_the_context_that_the_job_derives_is_shown(
    tmp_path: Path, report_of: ReportOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all counted rows, those beyond it are told to fail, as they will."""
    l4 = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:L4": 1.0}
    check_finds(monkeypatch, l4, "8B", context=131_072, needed=2000)
    source = texts(tmp_path / "in.jsonl", "short", "w " * 28_000)
    fields = {"engine": "vllm", "model": "acme/medium", "sampling": {"max_tokens": 16}, **TOLERANT}
    report = report_of(LocalFolder(str(tmp_path / "out")), source, "plan", prompt="{row.text}", **fields)
    sizes = sizes_in(report)
    assert sizes["max_model_len"][0] == "27648"
    assert sizes["max_model_len"][1].startswith("surely fits: the model's own 131,072 tokens take 16.0 GiB")
    assert sizes["kv_cache_tokens"][0] == "32511"
    assert (report.prompt_tokens.context, report.prompt_tokens.failed) == (27_648, 1)
    assert report.refusals == ()


def test_each_phase_is_told_when_it_begins(tmp_path: Path, report_of: ReportOf, told: list[Any]) -> None:
    """Each may take minutes: the line before says what is waited for."""
    place, source = LocalFolder(str(tmp_path / "out")), numbered(tmp_path / "in.jsonl", 6)
    first = [
        "checking the cluster and the destination",
        "listing and reading the source",
        "checking prompt and columns, by the first of 6 rows",
        "checking engine 'echo' and model 'm'",
        "looking for answers of earlier jobs",
    ]
    of_verb = {
        "preview": ["rendering the rows, and looking for their answers"],
        "plan": ["counting tokens of 6 prompts", "checking 6 rows for equal requests"],
    }
    for verb, last in of_verb.items():
        report_of(place, source, verb, model="m")
        assert [event.message for event in told if isinstance(event, Phase)] == [*first, *last]
        assert isinstance(told[0], Phase)
        assert not isinstance(told[-1], Phase)


@pytest.mark.parametrize("verb", ["preview", "plan"])
def test_the_destination_stays_as_it_is(tmp_path: Path, report_of: ReportOf, verb: str) -> None:
    """Also a folder that does not exist."""
    place, source = LocalFolder(str(tmp_path / "out")), numbered(tmp_path / "in.jsonl", 6)
    store = tmp_path / "store"
    report_of(place, source, verb, reuse=str(store), ask=5)
    assert not Path(place.uri).exists()
    assert not store.exists()
    dying_attempt(place, 0, source)
    before = everything_in(tmp_path)
    report_of(place, source, verb, ask=5)
    report_of(place, source, verb, reuse=str(store), ask=5)
    assert everything_in(tmp_path) == before


def everything_in(folder: Path) -> dict[str, tuple[int, int]]:
    stats = ((path, path.stat()) for path in folder.rglob("*"))
    return {str(path): (stat.st_mtime_ns, stat.st_size) for path, stat in stats}


@pytest.mark.parametrize("verb", ["preview", "plan"])
def test_a_bucket_gets_no_request_that_writes(
    tmp_path: Path, report_of: ReportOf, proxy: FaultyS3, s3_server: S3Server, verb: str
) -> None:
    bucket = s3_server.new_bucket()
    source = numbered(tmp_path / "in.jsonl", 6)
    dying_attempt(S3Folder(bucket, "out", s3_server.credentials), 0, source)
    before = s3_server.objects(bucket)
    watched = S3Folder(bucket, "out", proxy.api.credentials)
    report_of(watched, source, verb, reuse=f"s3://{bucket}/store", ask=5)
    assert s3_server.objects(bucket) == before
    assert {call.method for call in proxy.calls} <= {"GET", "HEAD"}
    assert proxy.calls


def test_all_refusals_come_at_once(tmp_path: Path, report_of: ReportOf) -> None:
    place, source = LocalFolder(str(tmp_path / "out")), tmp_path / "in.jsonl"
    attempt(place, 0, numbered(tmp_path / "other.jsonl", 1))
    source.write_bytes(as_jsonl([{"id": 1, "response": "x"}, {"id": 1, "response": "y"}]))
    someone = {
        "task": {"dag_id": "d", "run_id": "r", "task_id": "t"},
        "run_token": "z",
        "submission_id": "z-0",
    }
    rows, end = report_of(
        place, str(source), prompt="Say {id}, {row.nothing}", id_column="id", submission=someone
    )
    assert rows == []
    assert [sentence.partition(":")[0] for sentence in end.refusals] == [
        "destination",
        "prompt",
        "prompt",
        "output_prefix",
        "id_column",
    ]


def test_a_missing_source_is_one_sentence(tmp_path: Path, report_of: ReportOf) -> None:
    gone = str(tmp_path / "gone.jsonl")
    rows, end = report_of(LocalFolder(str(tmp_path / "out")), gone)
    assert (rows, end.rows, len(end.refusals)) == ([], None, 1)
    assert end.refusals[0].startswith("source: ")
    report = report_of(LocalFolder(str(tmp_path / "out")), gone, "plan")
    assert (report.rows, report.prompt_tokens, report.sizes) == (None, None, ())
    assert report.refusals == end.refusals


def test_a_long_chat_stays_one_event(tmp_path: Path, report_of: ReportOf) -> None:
    chat = [{"role": "user", "content": "\u4e16" * 5000}] * 200
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"chat": chat}) + "\n")
    (row,), _ = report_of(LocalFolder(str(tmp_path / "out")), str(path), messages_column="chat")
    assert len(row.model_dump_json().encode()) < 60_000
    assert row.messages[-1].text == "[136 more messages]"


def test_a_preview_tells_of_splits(tmp_path: Path, report_of: ReportOf) -> None:
    for name, rows in (("train", 3), ("test", 1)):
        texts(tmp_path / f"{name}.jsonl", *"abc"[:rows])
    _, end = report_of(LocalFolder(str(tmp_path / "out")), str(tmp_path / "*.jsonl"), prompt="Say {row.text}")
    assert any("test (1 row), train (3 rows)" in notice for notice in end.notices)
