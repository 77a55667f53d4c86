# SPDX-License-Identifier: Apache-2.0
"""Whole jobs over OpenAI batch files: each line is answered, in the output file or in the error file."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.dataset.opening import open_dataset
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.image_files import saved
from tests.support.openai_lines import (
    COMPLETIONS,
    EMBEDDINGS,
    IN_AND_OUT,
    answered,
    ask,
    by_id,
    chat,
    completion,
    line,
    run,
)
from tests.support.whole_job import attempt, ended_while_writing, without_cluster

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def test_mixed_lines_are_answered_in_two_files(tmp_path: Path) -> None:
    lines = [
        line("good", chat()),
        line("negative", chat(max_tokens=-1)),
        '{"custom_id": "torn", "method": "POST", "url": "/v1/chat/comp',
        '{"custom_id": "twice", "custom_id": "again", "method": "POST"}',
        line("two", chat(n=2, temperature=0.7)),
        line("raw", completion(), COMPLETIONS),
        line("json", chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}})),
        {"custom_id": 0, "method": "POST", "url": "/v1/chat/completions", "body": chat()},
        line("elsewhere", chat(), "/v1/responses"),
        line("long", chat("word " * 9000)),
        line("broken", chat("please BREAK")),
        b'{"custom_id": "\xff"}',
        "[]",
    ]
    out = run(tmp_path, lines, engine_args={"fail_pattern": "BREAK"})
    output, errors = answered(out)
    good, bad = by_id(output), [one["response"] for one in errors]
    assert set(good) == {"good", "two", "raw", "json"}
    assert good["good"]["body"]["choices"][0]["message"]["content"] == "hello there"
    assert [one["index"] for one in good["two"]["body"]["choices"]] == [0, 1]
    assert good["raw"]["body"]["choices"][0]["text"] == "one two three"
    assert set(json.loads(good["json"]["body"]["choices"][0]["message"]["content"])) == {"a"}
    assert good["good"]["body"]["usage"]["total_tokens"] == 4
    why = [one["body"]["error"] for one in bad]
    found = [
        (one["custom_id"], one["response"]["status_code"], error["param"], error["code"])
        for one, error in zip(errors, why, strict=True)
    ]
    assert found == [
        ("negative", 400, "max_tokens", "invalid_value"),
        ("torn", 400, None, "invalid_json_line"),
        ("twice", 400, None, "invalid_json_line"),
        (None, 400, "custom_id", "missing_required_parameter"),
        ("elsewhere", 400, "url", "invalid_url"),
        ("long", 400, "messages", "context_length_exceeded"),
        ("broken", 500, None, "server_error"),
        (None, 400, None, "invalid_json_line"),
        (None, 400, None, "invalid_json_line"),
    ]
    assert why[3]["message"] == "custom_id: it must be a text in quotes, but it is 0"
    kinds = {(one["status_code"], one["body"]["error"]["type"]) for one in bad}
    assert kinds == {(400, "invalid_request_error"), (500, "server_error")}


def test_a_photo_in_a_line_is_seen_and_not_answered_back(tmp_path: Path) -> None:
    """It has 6 MB; photos elsewhere are the errors of their lines."""
    pillow = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(1).integers(0, 256, (1000, 1600, 3), np.uint8)
    photo = saved(pillow.fromarray(noise))

    def about(url: str) -> dict[str, Any]:
        return chat([{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}])

    uri = f"data:image/png;base64,{base64.b64encode(photo).decode()}"
    places = ["https://images.example.com/1.png", "s3://lake/1.png", "/lake/1.png", uri[:-100_000]]
    lines = [line("photo", about(uri)), *(line(str(number), about(url)) for number, url in enumerate(places))]
    out = run(tmp_path, lines, id_column=None)
    output, errors = answered(out)
    (seen,) = output
    said = seen["response"]["body"]["choices"][0]["message"]["content"]
    assert (said[:11], said[-5:]) == ("[1600x1000 ", "what?")
    assert [one["response"]["body"]["error"]["code"] for one in errors] == [
        *["unsupported_parameter"] * 3,
        "invalid_image",
    ]
    assert len(json.dumps([output, errors])) < 10_000


def test_lines_that_are_all_bad_complete_the_job(tmp_path: Path) -> None:
    out = run(tmp_path, ["nothing", line("a", chat(stream=True)), "{}"])
    output, errors = answered(out)
    assert (output, len(errors)) == ([], 3)


def test_bodies_too_deep_for_a_later_stack_are_error_lines(tmp_path: Path) -> None:
    """A body that the reader just took would have failed the whole job when its answer was written."""

    def deep(custom_id: str, levels: int) -> str:
        asked = line(custom_id, chat(metadata="HERE", user="[{" * 300))
        return json.dumps(asked).replace('"HERE"', "[" * levels + "]" * levels)

    output, errors = answered(run(tmp_path, [deep("most", 199), deep("more", 200), deep("much more", 970)]))
    assert [one["custom_id"] for one in output] == ["most"]
    why = [(one["custom_id"], one["response"]["body"]["error"]["code"]) for one in errors]
    assert why == [("more", "invalid_json_line"), ("much more", "invalid_json_line")]


def test_broken_lines_have_no_id_of_another(tmp_path: Path) -> None:
    lines = [
        line("other", chat()),
        '{"body": {"metadata": {"custom_id": "other"}}, "custom_id": "own", "method": }',
        '{"custom_id": 5, "body": [{"custom_id": "other"}], "method": }',
        '{"body": {"user": "\\"custom_id\\": \\"other\\"", "custom_id": "other"',
    ]
    _, errors = answered(run(tmp_path, lines))
    assert [one["custom_id"] for one in errors] == ["own", None, None]


def test_half_a_character_in_an_id_fails_its_line_alone(tmp_path: Path) -> None:
    lines = [
        line("good", chat()),
        line("half \ud800", chat()),
        r'{"custom_id": "half \udfff", "method": }',
        r'{"custom_id": "\ud83d\ude00", "method": }',
    ]
    output, errors = answered(run(tmp_path, lines))
    assert [one["custom_id"] for one in output + errors] == ["good", None, None, "😀"]


def test_limits_on_failed_rows_hold_where_they_are_given(tmp_path: Path) -> None:
    with pytest.raises(RaybatchError, match="max_errors: "):
        run(tmp_path, [line("a", chat()), "{", "{"], max_errors=1)
    with pytest.raises(RaybatchError, match="max_error_fraction: "):
        run(tmp_path, [line("a", chat()), "{"], destination_format="parquet")


def test_doubled_ids_refuse_the_file_before_it_costs(tmp_path: Path) -> None:
    lines = [line("a", chat()), line("b", chat()), "{", line("a", chat())]
    with pytest.raises(PreflightError) as caught:
        run(tmp_path, lines)
    assert str(caught.value) == (
        "source: lines 1 and 4 both have the custom_id 'a'; answers are found by it, so each may be there "
        "once."
    )


def test_the_dataset_may_be_parquet_too(tmp_path: Path) -> None:
    lines = [line("a", chat()), line("b", chat(logprobs=True)), line("c", completion(), COMPLETIONS)]
    out = LocalFolder(str(tmp_path / "out"))
    source = ask(tmp_path / "in.jsonl", lines)
    attempt(out, 0, source, **{**IN_AND_OUT, "destination_format": "parquet"})
    rows = open_dataset(out.uri).to_arrow().to_pylist()
    assert [row["custom_id"] for row in rows] == ["a", "b", "c"]
    assert [row["response"] for row in rows] == ["hello there", "hello there", "one two three"]
    assert json.loads(rows[0]["body"]) == chat()
    assert [row["logprobs"] is not None for row in rows] == [False, True, False]


def test_readers_of_datasets_read_answers(tmp_path: Path) -> None:
    out = run(tmp_path, [line("a", chat()), "{"])
    dataset = open_dataset(out.uri)
    assert dataset.to_arrow()["custom_id"].to_pylist() == ["a"]
    assert dataset.dead_letters()["step"].to_pylist() == ["read"]
    moved = LocalFolder(str(tmp_path / "moved"))
    (tmp_path / "out").rename(tmp_path / "moved")
    assert str(open_dataset(moved.uri).manifest.errors_uri).startswith(f"{moved.uri}/errors/")


def test_readers_take_answers_that_differ(tmp_path: Path) -> None:
    """Arrow would take the columns of the first lines, where others have more, or another type."""
    lines = [line(f"plain-{number}", chat()) for number in range(5)]
    lines += [
        line("sure", chat("é b", logprobs=True, top_logprobs=1)),
        line("raw", completion("a b", logprobs=1), COMPLETIONS),
        line("large", chat("x" * 3_000_000)),
        line("last", chat()),
    ]
    dataset = open_dataset(run(tmp_path, lines, rows_per_part=5).uri)
    rows = dataset.to_arrow().to_pylist()
    assert [row["custom_id"] for row in rows] == [one["custom_id"] for one in lines]
    first, *_, sure, raw, large, last = ([*row["response"]["body"]["choices"]] for row in rows)
    assert first == last
    assert (first[0]["message"]["content"], first[0]["logprobs"]) == ("hello there", None)
    assert [one["token"] for one in sure[0]["logprobs"]["content"]] == ["é", "b"]
    assert (raw[0]["text"], raw[0]["logprobs"]["tokens"]) == ("a b", ["a", "b"])
    assert len(large[0]["message"]["content"]) == 3_000_000
    assert dataset.sample(9).num_rows == dataset.compare(dataset).same == 9
    pytest.importorskip("polars")  # the cluster's Python has none
    assert dataset.to_polars().collect().height == 9


@pytest.mark.parametrize(("packing", "kind"), [("float", list), ("base64", str)])
def test_readers_take_vectors(tmp_path: Path, packing: str, kind: type) -> None:
    body = {"model": "echo", "input": ["a", "b"], "encoding_format": packing}
    out = run(tmp_path, [line("a", body, EMBEDDINGS)], model_task="embed")
    (row,) = open_dataset(out.uri).to_arrow().to_pylist()
    vectors = [one["embedding"] for one in row["response"]["body"]["data"]]
    assert [type(one) for one in vectors] == [kind, kind]


def test_vectors_are_answered_as_numbers_or_base64(tmp_path: Path) -> None:
    body = {"model": "echo", "input": "some words"}
    lines = [
        line("numbers", body, EMBEDDINGS),
        line("packed", {**body, "encoding_format": "base64"}, EMBEDDINGS),
        line("list", {**body, "input": ["other words", "some words"]}, EMBEDDINGS),
        line("packed list", {**body, "input": ["a", "b"], "encoding_format": "base64"}, EMBEDDINGS),
        line("long", {**body, "input": ["short", "word " * 9000]}, EMBEDDINGS),
        line("chat", chat()),
    ]
    out = run(tmp_path, lines, model_task="embed")
    output, errors = answered(out)
    good = by_id(output)
    report = Report.model_validate_json(next(Path(out.uri).rglob("report.json")).read_bytes())
    shown = {one.id: str(one.response) for one in report.samples}
    assert set(shown) == set(good)
    assert all(text.startswith(("[0.", "[-0.")) for text in shown.values())
    numbers = good["numbers"]["body"]["data"][0]["embedding"]
    packed = base64.b64decode(good["packed"]["body"]["data"][0]["embedding"])
    assert np.frombuffer(packed, "<f4").tolist() == numbers
    assert good["numbers"]["body"]["usage"] == {"prompt_tokens": 2, "total_tokens": 2}
    data = good["list"]["body"]["data"]
    assert [one["index"] for one in data] == [0, 1]
    assert data[1]["embedding"] == numbers != data[0]["embedding"]
    assert good["list"]["body"]["usage"]["prompt_tokens"] == 4
    assert [len(one["embedding"]) for one in good["packed list"]["body"]["data"]] == [344, 344]
    why = [one["response"]["body"]["error"] for one in errors]
    assert [(one["param"], one["code"]) for one in why] == [
        ("input", "context_length_exceeded"),
        ("url", "invalid_url"),
    ]


def test_calls_of_the_jobs_tools_are_answered(tmp_path: Path) -> None:
    lines = [
        line("a", chat("please add", tools=TOOLS)),
        line("b", chat("hi", tools=TOOLS)),
        line("c", chat()),
    ]
    output, errors = answered(run(tmp_path, lines, tools=TOOLS))
    good = by_id(output)
    (choice,) = good["a"]["body"]["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert (call["type"], call["function"]["name"], call["id"][:5]) == ("function", "add", "call_")
    assert good["b"]["body"]["choices"][0]["finish_reason"] == "stop"
    assert [one["custom_id"] for one in errors] == ["c"]


def test_log_probabilities_have_both_forms(tmp_path: Path) -> None:
    lines = [
        line("chat", chat("é b", logprobs=True, top_logprobs=2)),
        line("chosen", chat("é b", logprobs=True)),
        line("raw", completion("é b", logprobs=1), COMPLETIONS),
    ]
    good = by_id(answered(run(tmp_path, lines))[0])
    first, second = good["chat"]["body"]["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["bytes"], len(first["top_logprobs"])) == ("é", [195, 169], 2)
    assert (second["token"], second["logprob"] < 0) == ("b", True)
    assert good["chosen"]["body"]["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    raw = good["raw"]["body"]["choices"][0]["logprobs"]
    assert (raw["tokens"], len(raw["token_logprobs"]), raw["text_offset"]) == (["é", "b"], 2, [0, 1])


def test_resumed_answers_equal_undisturbed_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job dies in the middle, and its retry answers what is left: no line twice, none missing."""
    lines = [line(f"id-{number}", chat(f"question {number}")) for number in range(60)]
    lines[7] = line("id-7", chat(stream=True))
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    whole = answered(run(undisturbed, lines, flush_interval=0.001))
    asked: list[str] = []
    generate = EchoEngine.generate

    async def noted(engine: EchoEngine, encoded: Any) -> Any:
        asked.append(encoded.prompt)
        return await generate(engine, encoded)

    monkeypatch.setattr(EchoEngine, "generate", noted)
    source = ask(tmp_path / "in.jsonl", lines)
    out = LocalFolder(str(tmp_path / "out"))
    fields = {**IN_AND_OUT, "flush_interval": 0.001, "rows_in_flight": 4}
    died = RaybatchError("the disk is away.", FailureClass.CANCELLED)
    with ended_while_writing(2, died), pytest.raises(RaybatchError):
        attempt(out, 0, source, **fields)
    done = len(asked)
    summary = attempt(out, 1, source, **fields)
    assert (summary.rows, summary.errors) == (59, 1)
    assert summary.resumed > 0
    assert len(asked) - done < 59
    again = answered(out)
    assert [one["custom_id"] for one in again[0]] == [one["custom_id"] for one in whole[0]]
    for resumed, straight in zip(again[0] + again[1], whole[0] + whole[1], strict=True):
        assert resumed["id"] == straight["id"]


def test_a_retry_after_the_commit_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = LocalFolder(str(tmp_path / "out"))
    source = ask(tmp_path / "in.jsonl", [line("a", chat()), "{"])
    prepare = publishing.prepare
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "prepare", lambda *_: 1 / 0)
        with pytest.raises(RaybatchError):
            attempt(out, 0, source, **IN_AND_OUT)
    monkeypatch.setattr(publishing, "prepare", prepare)
    attempt(out, 1, source, **IN_AND_OUT)
    first = answered(out)
    attempt(out, 2, source, **IN_AND_OUT)
    assert answered(out) == first


VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([
    "model", "messages", "prompt", "input", "temperature", "max_tokens", "stop", "n", "logprobs", "tools",
    "response_format", "top_logprobs", "logit_bias", "seed", "stream", "role", "content", "chat_template",
])  # fmt: skip
BODIES = st.builds(
    lambda base, more: {**base, **more},
    st.sampled_from([chat(), completion(), {}]),
    st.dictionaries(NAMES, VALUES, max_size=3),
)
FUZZ = st.lists(
    st.builds(
        lambda fields, base: {**base, **fields},
        st.dictionaries(st.sampled_from(["method", "url", "body", "more"]), VALUES, max_size=1),
        st.builds(lambda body, url: {"method": "POST", "url": url, "body": body}, BODIES,
                  st.sampled_from(["/v1/chat/completions", COMPLETIONS])),
    )
    | st.text(max_size=30).filter(lambda text: "\n" not in text and text.strip())
    | st.binary(min_size=1, max_size=30).filter(lambda raw: b"\n" not in raw and raw.strip()),
    min_size=1,
    max_size=25,
)  # fmt: skip


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(lines=FUZZ)
def test_any_lines_end_in_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[Any]) -> None:
    named = [
        {"custom_id": f"id-{place}", **one} if isinstance(one, dict) else one
        for place, one in enumerate(lines)
    ]
    output, errors = answered(run(tmp_path_factory.mktemp("fuzz"), named))
    ids = [one["custom_id"] for one in output + errors if one["custom_id"]]
    wanted = [one["custom_id"] for one in named if isinstance(one, dict)]
    assert sorted(ids) == sorted(wanted)
