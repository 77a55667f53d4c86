# SPDX-License-Identifier: Apache-2.0
"""The Batch API beside what happens to its servers and users: lost answers, kills, other users, limits."""

from __future__ import annotations

import hashlib
import json

import httpx
import psutil
import pytest

from tests.support.forgetful_proxy import forgetful

from .batch_checks import final
from .batch_world import BOB, GOOD, MAIN, PREFIX, chats, create, text_of
from .secrecy import Secrets, left_by_airflow, shown_by_airflow, shown_by_ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_repeated_create_makes_one_batch(batches, file_id):
    """The proxy loses the first answer; the client repeats by itself, without a key of its own."""
    with forgetful(batches.airflow.url, f"{PREFIX}/batches") as proxy:
        repeated, intended = batches.calls(*[create(file_id)] * 2, url=f"{proxy.url}{PREFIX}")
    batches.cancel(repeated, intended)  # nothing waits for their answers
    first, second, third = (answer.json() for answer in proxy.answers)
    assert [one["x-stainless-retry-count"] for one in proxy.headers] == ["0", "1", "0"]
    assert first["id"] == second["id"] == repeated["id"]
    assert third["id"] == intended["id"] != repeated["id"]


def test_key_of_a_create_makes_one_batch(batches, file_id):
    """With another file the same key makes another batch, as operators do that make a failed batch again."""
    again = batches.upload(GOOD)
    keyed = create(file_id, metadata={"idempotency_key": "night-7"})
    header = create(file_id, extra_headers={"Idempotency-Key": "night-8"})
    with_another_file = create(again, metadata={"idempotency_key": "night-7"})
    played = batches.calls(keyed, keyed, header, header, with_another_file)
    batches.cancel(*played)
    one, same, other, same_other, of_another_file = (batch["id"] for batch in played)
    assert (one, other) == (same, same_other)
    assert len({one, other, of_another_file}) == 3


@pytest.mark.turn(1)
def test_batch_goes_on_after_a_kill_of_the_server(batches):
    (made,) = batches.play(MAIN, {"made": {"play": "started", "content": text_of(chats("kill"))}}).values()
    batches.airflow.kill("api-server", with_family=True)
    batches.airflow.start("api-server")
    batches.airflow.wait_until_healthy()
    (played,) = batches.play(MAIN, {"it": {"play": "finished", "batch_id": made["created"]["id"]}}).values()
    batch = final(played)
    assert batch["status"] == "completed"
    assert {name: batch[name] for name in ("id", "created_at")} == {
        name: made["created"][name] for name in ("id", "created_at")
    }
    assert len(batches.asked("kill ")) == 3


@pytest.mark.turn(2)
def test_other_users_see_nothing(batches):
    """Nor does Airflow's own API show any of the content, even to its admin."""
    marker = "kettlesecret"
    content = text_of(chats(marker))
    (done,) = batches.play(MAIN, {"hers": {"play": "batch", "content": content}}).values()
    batch = final(done)
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
        assert marker not in json.dumps(refusal)
    listed = {one["id"] for page in pages for one in page["data"]}
    assert not listed & {*files, batch["id"]}

    run = batches.run_of(batch)
    assert batches.airflow.api.call("GET", run.path)["conf"] == {"batch_id": batch["id"]}
    secrets = Secrets({"content": marker})
    for task in run.tasks():
        assert not secrets.leaks(shown_by_airflow(task))
    assert not secrets.leaks(left_by_airflow(batches.airflow))
    assert not secrets.leaks(shown_by_ray(batches.jobs))


@pytest.mark.parametrize("token", ["", "wrong"])
def test_calls_without_a_token_are_refused(batches, token):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    for path in ("/files", "/batches", "/models"):
        answer = httpx.get(f"{batches.url}{path}", headers=headers, timeout=60)
        assert answer.status_code == 401, path
        assert answer.json()["error"]["type"] == "authentication_error"


def test_model_of_another_user_is_refused(batches):
    """As one that does not exist is."""
    files = [batches.upload(text_of(chats("hidden", model=name))) for name in ("of-bob", "none-such")]
    refusals = batches.calls(*(create(file) for file in files))
    told = [{**refusal, "request_id": None} for refusal in refusals]
    assert told[0]["status"] in {400, 404}
    assert told[0] == json.loads(json.dumps(told[1]).replace("none-such", "of-bob"))


@pytest.mark.turn(2)
def test_large_file_needs_little_memory(batches, tmp_path):
    """Up and down again, 200 MB and more."""
    text = json.dumps(chats("large", 1)[0]).encode() + b"\n"
    content = text * (210 * 2**20 // len(text))
    (tmp_path / "large.jsonl").write_bytes(content)
    server = psutil.Process(batches.airflow.pid("api-server"))
    family = [server, *server.children(recursive=True)]
    before = sum(one.memory_info().rss for one in family)
    (played,) = batches.play(MAIN, {"it": {"play": "large", "path": str(tmp_path / "large.jsonl")}}).values()
    grown = sum(one.memory_info().rss for one in family) - before
    assert played["uploaded"]["bytes"] == len(content)
    assert played["read"] == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert grown < 120 * 2**20


@pytest.mark.turn(3)
def test_strict_server_has_the_limits_of_openai(batches, tmp_path):
    """A second server beside the first, which knows the batches of both."""
    too_many = text_of([json.dumps(chats("many", 1)[0]).replace("many-0", f"{n}") for n in range(50_001)])
    too_large = tmp_path / "large.jsonl"
    too_large.write_bytes(b"x" * 200_000_001)
    with batches.server_beside(RAYBATCH__BATCH_API_STRICT="True") as url:
        file_id = batches.upload(GOOD)
        window, made = batches.calls(create(file_id, completion_window="1h"), create(file_id), url=url)
        assert (window["status"], window["param"]) == (400, "completion_window")
        with pytest.raises(AssertionError, match=r"BadRequestError|RequestTooLarge|413|400"):
            batches.play(MAIN, {"it": {"play": "large", "path": str(too_large)}}, url=url)
        (played,) = batches.play(MAIN, {"it": {"play": "batch", "content": too_many}}, url=url).values()
    batch = final(played)
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "too_many_tasks")
    (found,) = batches.calls(["batches.retrieve", {"batch_id": made["id"]}])
    assert found["id"] == made["id"]
    assert batches.asked("many ") == []
