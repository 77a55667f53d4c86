# SPDX-License-Identifier: Apache-2.0
"""The Batch API as the official clients of OpenAI see it, in a whole Airflow."""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.support.forgetful_proxy import forgetful
from tests.support.numbered_pictures import Picture
from tests.support.openai_lines import COMPLETIONS, EMBEDDINGS, line

from . import inputs
from .batch_checks import codes, final, ids, lines
from .batch_world import ANN, BOB, GOOD, MAIN, PREFIX, VLLM_MODEL, BatchWorld, chats, create, text_of
from .secrecy import Secrets, left_by_airflow, shown_by_airflow, shown_by_ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ASYNC = "1-async"
HOUR = 3600
PICTURE = Picture(7)
VLLM_EXAMPLE = text_of(
    line(
        f"request-{number}",
        {
            "model": VLLM_MODEL,
            "messages": [
                {"role": "system", "content": f"You are {manner} assistant."},
                {"role": "user", "content": "Hello world!"},
            ],
            "max_completion_tokens": 1000,
        },
    )
    for number, manner in ((1, "a helpful"), (2, "an unhelpful"))
)
"""As vLLM's examples/offline_inference/openai_batch/openai_example_batch.jsonl."""
MARKER = "kettlesecret"
"""In the content of a batch, and in nothing that others are shown."""
LATE = chats("late_" + " a" * 6, 180, model="slow")
"""Each pair takes four seconds, so all of them more than six minutes."""
_WINDOWS = (90.0, 240.0)
"""Seconds; the second for a machine on which the first passes before anything is answered."""


def mixed() -> list[dict[str, Any]]:
    """Of the last two, one has a picture in it, and the other one somewhere else."""
    rows = chats("mixed", 4)
    rows[1]["body"]["max_tokens"] = -1
    for number, url in ((2, PICTURE.uri()), (3, "https://images.example.com/1.png")):
        parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
        rows[number]["body"]["messages"][0]["content"] = parts
    return rows


WRONG_CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "wrong purpose": ("purpose", "files.create", {"file": ["a.jsonl", GOOD], "purpose": "fine-tune"}),
    "unknown window": ("completion_window", "batches.create", {"completion_window": "a fortnight"}),
    "17 keys": ("metadata", "batches.create", {"metadata": {f"key{number}": "" for number in range(17)}}),
    "limit 101": ("limit", "batches.list", {"limit": 101}),
    "files, limit 10001": ("limit", "files.list", {"limit": 10001}),
}
"""Calls of each kind that are refused with 400, and the field that the refusal names; unit tests have all."""


ALL_BAD = {"play": "batch", "content": text_of(chats("allbad", max_tokens=-1))}
RAW = {
    "play": "batch",
    "content": text_of(
        line(f"raw-{number}", {"model": "echo", "prompt": f"raw {number}", "max_tokens": 8}, COMPLETIONS)
        for number in range(2)
    ),
    "endpoint": COMPLETIONS,
}
VECTORS = {
    "play": "batch",
    "content": text_of(
        line(f"vector-{number}", {"model": "vectors", "input": given}, EMBEDDINGS)
        for number, given in enumerate(["one text", ["two", "texts"]])
    ),
    "endpoint": EMBEDDINGS,
}
CANCELLED = {"play": "cancelled", "content": text_of(chats("cut", 60, model="slow")), "after": 2}


def late(batches: BatchWorld) -> str:
    """Make a batch that expires when it has some answers, and return its id.

    Its window is shorter than clients may ask for, so its record is made as the server makes it. Other
    batches begin after its first answer: on a busy machine it would get none in time beside them.
    """
    for window in _WINDOWS:
        batch_id = batches.create(batches.upload(text_of(LATE)), "slow", window).run_id
        while True:
            (batch,) = batches.calls(retrieve(batch_id))
            if batch["request_counts"]["completed"]:
                return batch_id
            if batch["status"] == "expired":
                break
            time.sleep(1.0)
    raise AssertionError(f"no answer within {_WINDOWS[-1]:.0f} s: {batch}")


def retrieve(batch_id: str) -> list[Any]:
    return ["batches.retrieve", {"batch_id": batch_id}]


def scenarios(batches: BatchWorld, file_id: str) -> dict[str, dict[str, dict[str, Any]]]:
    """What each client does."""
    wrong = [
        create(file_id, **fields) if call == "batches.create" else [call, fields]
        for _, call, fields in WRONG_CALLS.values()
    ]
    return {
        # First, since the late batch has its first answer then.
        ASYNC: {
            "late": {"play": "finished", "batch_id": late(batches)},
            "all bad": ALL_BAD,
            "raw": RAW,
            "vectors": VECTORS,
        },
        MAIN: {
            "good": {"play": "batch", "content": GOOD, "metadata": {"job": "nightly", "empty": ""}},
            "mixed": {"play": "batch", "content": text_of(mixed())},
            "wrong": {"play": "calls", "calls": wrong},
            "duplicate": {"play": "batch", "content": text_of([*chats("twice"), *chats("twice", 1)])},
            "vllm": {"play": "batch", "content": VLLM_EXAMPLE},
            "cancelled": CANCELLED,
            "limited": {"play": "batch", "content": text_of(chats("much", 60, model="limited"))},
            "hers": {"play": "batch", "content": text_of(chats(MARKER))},
        },
    }


@pytest.fixture(scope="module")
def played(batches: BatchWorld, file_id: str) -> dict[str, Any]:
    """What the clients got, by name: side by side, since each mostly waits for jobs."""
    wanted = scenarios(batches, file_id)
    with ThreadPoolExecutor() as pool:
        of_async, of_main = pool.map(batches.play, wanted, wanted.values())
    return {**of_async, **of_main}


def test_good_lines_are_answered(played):
    batch = final(played["good"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert ids(lines(played["good"], "output")) == {"good-0", "good-1", "good-2"}
    for one in lines(played["good"], "output"):
        (choice,) = one["response"]["body"]["choices"]
        assert choice["message"]["content"] == one["custom_id"].replace("-", " ")
        assert one["response"]["body"]["model"] == "echo"
    assert batch["metadata"] == {"job": "nightly", "empty": ""}
    assert batch["model"] == "echo"
    assert batch["expires_at"] - batch["created_at"] == 24 * HOUR
    uploaded = played["good"]["uploaded"]
    assert (uploaded["object"], uploaded["purpose"], uploaded["status"]) == ("file", "batch", "processed")
    assert (uploaded["filename"], uploaded["bytes"]) == ("requests.jsonl", len(GOOD))
    assert uploaded["expires_at"] - uploaded["created_at"] == 30 * 24 * HOUR


def test_wrong_line_is_an_error_line(played):
    batch = final(played["mixed"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    failed, _ = sorted(lines(played["mixed"], "errors"), key=lambda one: one["custom_id"])
    assert (failed["custom_id"], failed["error"], failed["response"]["status_code"]) == ("mixed-1", None, 400)
    assert set(failed["response"]["body"]["error"]) == {"message", "type", "param", "code"}
    assert "max_tokens" in failed["response"]["body"]["error"]["message"]


def test_picture_is_answered_only_where_its_line_has_it(played):
    said = {one["custom_id"]: one["response"]["body"] for one in lines(played["mixed"], "output")}
    assert said["mixed-2"]["choices"][0]["message"]["content"] == f"{PICTURE.said} what?"
    assert "base64" not in json.dumps(played["mixed"]["output"])
    _, failed = sorted(lines(played["mixed"], "errors"), key=lambda one: one["custom_id"])
    assert failed["response"]["status_code"] == 400
    assert "data:" in failed["response"]["body"]["error"]["message"]


def test_file_with_equal_ids_fails_before_anything_is_asked(played, batches):
    batch = final(played["duplicate"])
    assert (batch["status"], batch["in_progress_at"]) == ("failed", None)
    (first,) = batch["errors"]["data"]
    assert (first["code"], first["line"]) == ("duplicate_custom_id", 4)
    assert batch["request_counts"]["completed"] == 0
    assert set(first) == {"code", "message", "param", "line"}
    assert not batches.asked("twice ")


def test_wrong_calls_are_refused_with_the_field(played):
    for (name, (param, _, _)), refusal in zip(WRONG_CALLS.items(), played["wrong"], strict=True):
        assert refusal.get("status") == 400, (name, refusal)
        assert refusal["kind"] == "BadRequestError"
        assert refusal["type"] == "invalid_request_error"
        assert refusal["param"].split(".")[0].split("[")[0] == param, (name, refusal)
        assert refusal["request_id"], name


def test_batch_of_wrong_lines_has_errors_alone(played):
    batch = final(played["all bad"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 3}
    assert batch["output_file_id"] is None
    assert ids(lines(played["all bad"], "errors")) == {"allbad-0", "allbad-1", "allbad-2"}


def test_prompts_and_texts_are_answered(played):
    assert final(played["raw"])["status"] == final(played["vectors"])["status"] == "completed"
    raw = {one["custom_id"]: one["response"]["body"] for one in lines(played["raw"], "output")}
    assert {name: body["choices"][0]["text"] for name, body in raw.items()} == {
        "raw-0": "raw 0",
        "raw-1": "raw 1",
    }
    vectors = {
        one["custom_id"]: one["response"]["body"]["data"] for one in lines(played["vectors"], "output")
    }
    assert {name: len(data) for name, data in vectors.items()} == {"vector-0": 1, "vector-1": 2}


def test_example_of_vllm_is_answered(played):
    assert final(played["vllm"])["status"] == "completed"
    assert ids(lines(played["vllm"], "output")) == {"request-1", "request-2"}


def test_cancelled_batch_keeps_what_is_finished(played, batches):
    batch = final(played["cancelled"])
    assert batch["status"] == "cancelled"
    assert played["cancelled"]["cancelled"]["status"] == "cancelling"
    assert batch["request_counts"]["total"] == 60
    assert len(lines(played["cancelled"], "output")) >= 2
    assert codes(lines(played["cancelled"], "errors")) == {"batch_cancelled"}
    (job,) = batches.jobs.of(batches.run_of(batch).tasks()[0])
    assert job["status"] in {"SUCCEEDED", "STOPPED", "FAILED"}
    assert batches.jobs.replicas(job) == []


def test_batch_that_reaches_a_limit_keeps_what_is_finished(played, batches):
    batch, output = final(played["limited"]), lines(played["limited"], "output")
    errors = lines(played["limited"], "errors")
    assert batch["status"] == "cancelled"
    (why,) = batch["errors"]["data"]
    assert (why["code"], why["message"].partition(":")[0]) == ("limit_reached", "max_tokens_total")
    assert codes(errors) == {"batch_limit_reached"}
    assert 1 <= len(output) == 60 - len(errors)
    run = batches.run_of(batch).wait("success", 60)
    assert [task.xcom()["status"] for task in run.tasks()] == ["limit_reached"]


def test_expired_batch_keeps_what_is_finished(played, batches):
    batch = final(played["late"])
    assert batch["status"] == "expired"
    output, errors = lines(played["late"], "output"), lines(played["late"], "errors")
    assert len(output) >= 1
    assert codes(errors) == {"batch_expired"}
    assert len(output) + len(errors) == len(LATE)
    batches.run_of(batch).wait("success", 60)


def test_two_clients_and_a_night_ask_once(batches, tmp_path):
    """By the engines' log: equal requests of two users and of a DAG that asks about rows."""
    wanted = {"temperature": 0, "max_tokens": 8}
    content = text_of(chats("shared", model="reusing", **wanted))
    for user in (ANN, BOB):
        (played,) = batches.play(MAIN, {"it": {"play": "batch", "content": content}}, user=user).values()
        assert final(played)["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    texts = [one["body"]["messages"][0]["content"] for one in chats("shared")]
    rows = inputs.batch(tmp_path, texts, prompt="{row.text}", sampling=wanted, **batches.reuse)
    night = batches.airflow.api.trigger("batch_blocking", **rows).wait("success").task("infer").xcom()
    assert (night["rows"], night["reused"]) == (3, 3)
    assert len(batches.asked("shared ")) == 3


def test_lists_have_pages(batches, file_id):
    """After the fixtures have made some; of the user who lists, and the newest first."""
    batches.cancel(*batches.calls(*[create(file_id)] * 2))  # nothing waits for their answers
    for _ in range(2):  # with the fixture's own more files than a page has
        batches.upload(GOOD)
    for client in (MAIN, ASYNC):
        played = batches.play(
            client,
            {
                "batches": {"play": "pages", "call": "batches.list", "limit": 1},
                "files": {
                    "play": "pages",
                    "call": "files.list",
                    "limit": 2,
                    "purpose": "batch",
                    "order": "asc",
                },
            },
        )
        for name, newest_first in (("batches", True), ("files", False)):
            listed = played[name]
            every = [one["id"] for one in listed["every"]]
            assert len(set(every)) == len(every) >= 2
            assert [one["id"] for one in listed["by_hand"]] == every
            times = [one["created_at"] for one in listed["every"]]
            assert times == sorted(times, reverse=newest_first)
            assert listed["body"]["object"] == "list"
            assert (listed["body"]["first_id"], listed["body"]["last_id"]) == (
                listed["first"][0]["id"],
                listed["first"][-1]["id"],
            )
            assert listed["has_more"]
        assert len(played["batches"]["first"]) == 1


def test_repeated_create_makes_one_batch(batches, file_id):
    """The proxy loses the first answer; the client repeats by itself, without a key of its own."""
    with forgetful(batches.airflow.url, f"{PREFIX}/batches") as proxy:
        repeated, intended = batches.calls(*[create(file_id)] * 2, url=f"{proxy.url}{PREFIX}")
    batches.cancel(repeated, intended)  # nothing waits for their answers
    first, second, third = (answer.json() for answer in proxy.answers)
    assert [one["x-stainless-retry-count"] for one in proxy.headers] == ["0", "1", "0"]
    assert first["id"] == second["id"] == repeated["id"]
    assert third["id"] == intended["id"] != repeated["id"]


def test_other_users_see_nothing(played, batches):
    """Nor does Airflow's own API show any of the content, even to its admin."""
    batch = final(played["hers"])
    files = [batch[name] for name in ("input_file_id", "output_file_id")]
    tried = [
        *([f"files.{call}", {"file_id": one}] for one in files for call in ("retrieve", "content", "delete")),
        *([f"batches.{call}", {"batch_id": batch["id"]}] for call in ("retrieve", "cancel")),
        create(files[0]),
    ]
    refusals = batches.calls(*tried, user=BOB)
    pages = batches.calls(["files.list", {}], ["batches.list", {}], user=BOB)
    for (call, _), refusal in zip(tried, refusals, strict=True):
        assert refusal.get("status") == (400 if call == "batches.create" else 404), (call, refusal)
        assert MARKER not in json.dumps(refusal)
    listed = {one["id"] for page in pages for one in page["data"]}
    assert not listed & {*files, batch["id"]}

    run = batches.run_of(batch)
    assert batches.airflow.api.call("GET", run.path)["conf"] == {"batch_id": batch["id"]}
    secrets = Secrets({"content": MARKER})
    for task in run.tasks():
        assert not secrets.leaks(shown_by_airflow(task))
    assert not secrets.leaks(left_by_airflow(batches.airflow))
    assert not secrets.leaks(shown_by_ray(batches.jobs))


def test_large_file_needs_little_memory(batches, tmp_path):
    """Up and down again, a hundred MB."""
    text = json.dumps(chats("large", 1)[0]).encode() + b"\n"
    content = text * (105 * 2**20 // len(text))
    (tmp_path / "large.jsonl").write_bytes(content)
    server = psutil.Process(batches.airflow.pid("api-server"))
    family = [server, *server.children(recursive=True)]
    before = sum(one.memory_info().rss for one in family)
    (played,) = batches.play(MAIN, {"it": {"play": "large", "path": str(tmp_path / "large.jsonl")}}).values()
    grown = sum(one.memory_info().rss for one in family) - before
    assert played["uploaded"]["bytes"] == len(content)
    assert played["read"] == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert grown < 60 * 2**20


@pytest.mark.vllm
@pytest.mark.thorough("vLLM behind the Batch API; echo behind it and vLLM in test_chat run always")
def test_vllm_answers_and_its_tokens_are_counted(batches):
    """Greedy answers of a small model that can add, and usage as vLLM's tokenizer has it."""
    rows = chats("sum", 2, model="demo", temperature=0, max_tokens=24)
    rows += chats("cut", 1, model="demo", temperature=0, max_tokens=1)
    rows += chats("two", 1, model="demo", temperature=1, seed=7, max_tokens=24, n=2)
    for one in rows:
        one["body"]["messages"][0]["content"] = "What is 3 + 4?"
    (played,) = batches.play(MAIN, {"it": {"play": "batch", "content": text_of(rows)}}).values()
    batch = final(played)
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 4)
    found = {one["custom_id"]: one["response"]["body"] for one in lines(played, "output")}
    for name in ("sum-0", "sum-1"):
        assert found[name]["choices"][0]["message"]["content"].strip() == "7"
        assert found[name]["choices"][0]["finish_reason"] == "stop"
    assert found["cut-0"]["choices"][0]["finish_reason"] == "length"
    assert found["cut-0"]["usage"]["completion_tokens"] == 1
    assert len(found["two-0"]["choices"]) == 2
    assert len({body["usage"]["prompt_tokens"] for body in found.values()}) == 1
