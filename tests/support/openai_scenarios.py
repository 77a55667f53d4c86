# SPDX-License-Identifier: Apache-2.0
"""What programs do with the Batch API through the official `openai` client, of any version, sync or async.

A program of its own, which needs that client alone: for each line of its input, a task as JSON, it plays all
scenarios side by side, and prints a line with what the client got as JSON, see :func:`play`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai

ENDED = ("failed", "completed", "expired", "cancelled")
PAUSE = 1.0
"""Seconds between two polls, short enough to see most states. With shorter ones, several clients at once take
much of a small machine from the batches that they wait for."""


class Client:
    """The official client; hides whether it is async.

    :param mode: ``sync`` or ``async``.
    """

    def __init__(self, mode: str, url: str, token: str, **options: Any) -> None:
        made = {"sync": openai.OpenAI, "async": openai.AsyncOpenAI}[mode]
        self.is_async = mode == "async"
        self._loop = asyncio.new_event_loop() if self.is_async else None
        self.api: Any = made(base_url=url, api_key=token, timeout=60, **options)

    def do(self, call: str, **given: Any) -> Any:
        """Call a method by its path, such as ``batches.create``, and return its result."""
        return self._finish(self._method(call)(**given))

    def every(self, call: str, **given: Any) -> list[Any]:
        """Return the items of all pages of a listing, as the client pages by itself."""
        listed = self._method(call)(**given)
        return self._finish(_collected(listed)) if self.is_async else list(listed)

    def lines(self, file_id: str) -> list[str]:
        """Return a file's lines, streamed."""
        streamed = self.api.files.with_streaming_response.content(file_id)
        if self.is_async:
            return self._finish(_lines_of(streamed))
        with streamed as response:
            return list(response.iter_lines())

    def digest(self, file_id: str) -> dict[str, Any]:
        """Return bytes and digest of a file's content, streamed in chunks."""
        streamed = self.api.files.with_streaming_response.content(file_id)
        if self.is_async:
            return self._finish(_digest_of(streamed))
        found, size = hashlib.sha256(), 0
        with streamed as response:
            for chunk in response.iter_bytes():
                found.update(chunk)
                size += len(chunk)
        return {"sha256": found.hexdigest(), "bytes": size}

    def _method(self, call: str) -> Callable[..., Any]:
        found = self.api
        for name in call.split("."):
            found = getattr(found, name)
        return found

    def _finish(self, result: Any) -> Any:
        if inspect.isawaitable(result):
            return self._loop.run_until_complete(result)
        return result


async def _collected(listed: Any) -> list[Any]:
    return [one async for one in listed]


async def _lines_of(streamed: Any) -> list[str]:
    async with streamed as response:
        return [line async for line in response.iter_lines()]


async def _digest_of(streamed: Any) -> dict[str, Any]:
    found, size = hashlib.sha256(), 0
    async with streamed as response:
        async for chunk in response.iter_bytes():
            found.update(chunk)
            size += len(chunk)
    return {"sha256": found.hexdigest(), "bytes": size}


def plain(result: Any) -> Any:
    """Return what the client gave as JSON, with fields that its version does not know."""
    return result.to_dict(mode="json") if hasattr(result, "to_dict") else result


def upload(client: Client, content: str, filename: str = "requests.jsonl", **given: Any) -> Any:
    made = client.do("files.create", file=(filename, content.encode()), purpose="batch", **given)
    return client.do("files.wait_for_processing", id=made.id, poll_interval=0.1)


def follow(client: Client, batch_id: str, seconds: float = 600) -> list[dict[str, Any]]:
    """Poll a batch until its end; return each answer that differs from the one before."""
    polls: list[dict[str, Any]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = plain(client.do("batches.retrieve", batch_id=batch_id))
        if not polls or polls[-1] != found:
            polls.append(found)
        if found["status"] in ENDED:
            return polls
        time.sleep(PAUSE)
    raise TimeoutError(f"the batch has not ended after {seconds} s: {polls}")


def read(client: Client, file_id: str | None) -> dict[str, Any] | None:
    """Return a file as the client has it: its object, its lines, and that streaming gives the same."""
    if file_id is None:
        return None
    text = client.do("files.content", file_id=file_id).text
    lines = [line for line in text.split("\n") if line]
    assert [line for line in client.lines(file_id) if line] == lines
    return {
        "file": plain(client.do("files.retrieve", file_id=file_id)),
        "bytes": len(text.encode()),
        "lines": [json.loads(line) for line in lines],
    }


def _ended(client: Client, made: Any, uploaded: Any, polls: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "uploaded": plain(uploaded),
        "created": plain(made),
        "polls": polls,
        "output": read(client, polls[-1].get("output_file_id")),
        "errors": read(client, polls[-1].get("error_file_id")),
    }


def create(client: Client, uploaded: Any, endpoint: str, **given: Any) -> Any:
    given.setdefault("completion_window", "24h")
    return client.do("batches.create", input_file_id=uploaded.id, endpoint=endpoint, **given)


def batch(
    client: Client,
    content: str,
    endpoint: str = "/v1/chat/completions",
    filename: str = "requests.jsonl",
    **given: Any,
) -> Any:
    """Upload, create, poll to the end, read."""
    uploaded = upload(client, content, filename)
    made = create(client, uploaded, endpoint, **given)
    return _ended(client, made, uploaded, follow(client, made.id))


def started(client: Client, content: str, endpoint: str = "/v1/chat/completions", **given: Any) -> Any:
    """Upload and create."""
    uploaded = upload(client, content)
    return {"uploaded": plain(uploaded), "created": plain(create(client, uploaded, endpoint, **given))}


def finished(client: Client, batch_id: str) -> Any:
    """Poll a batch to its end and read it."""
    polls = follow(client, batch_id)
    uploaded = client.do("files.retrieve", file_id=polls[-1]["input_file_id"])
    return {**_ended(client, polls[0], uploaded, polls), "created": polls[0]}


def cancelled(client: Client, content: str, after: int, endpoint: str = "/v1/chat/completions") -> Any:
    """Cancel a batch when it has so many answers."""
    uploaded = upload(client, content)
    made = create(client, uploaded, endpoint)
    polls: list[dict[str, Any]] = []
    deadline = time.monotonic() + 600
    while not polls or polls[-1]["request_counts"]["completed"] < after:
        assert time.monotonic() < deadline, polls
        time.sleep(PAUSE)
        found = plain(client.do("batches.retrieve", batch_id=made.id))
        assert found["status"] not in ENDED, found
        if not polls or polls[-1] != found:
            polls.append(found)
    stopped = plain(client.do("batches.cancel", batch_id=made.id))
    again = plain(client.do("batches.cancel", batch_id=made.id))
    polls += [stopped, again, *follow(client, made.id)]
    return {**_ended(client, made, uploaded, polls), "cancelled": stopped}


def calls(client: Client, calls: list[list[Any]]) -> list[Any]:
    """Make calls one after the other; return each one's result, or how the client raised a refusal."""
    return [_outcome(client, *one) for one in calls]


def _outcome(client: Client, call: str, given: dict[str, Any]) -> Any:
    if "file" in given:
        name, text = given["file"]
        given = {**given, "file": (name, text.encode())}
    try:
        result = client.do(call, **given)
        return {"text": result.text} if call == "files.content" else plain(result)
    except openai.APIStatusError as error:
        return {
            "status": error.status_code,
            "kind": type(error).__name__,
            "message": error.message,
            "code": error.code,
            "param": error.param,
            "type": error.type,
            "request_id": error.request_id,
        }


def pages(client: Client, call: str, limit: int, **given: Any) -> Any:
    """List everything by pages of one size, and one page at a time by the last item's id."""
    every = [plain(one) for one in client.every(call, limit=limit, **given)]
    by_hand: list[Any] = []
    cursor: dict[str, Any] = {}
    for _ in range(len(every) + 2):
        page = client.do(call, limit=limit, **given, **cursor)
        by_hand += [plain(one) for one in page.data]
        if not page.has_more:
            break
        cursor = {"after": page.data[-1].id}
    first = client.do(call, limit=limit, **given)
    return {
        "every": every,
        "by_hand": by_hand,
        "first": [plain(one) for one in first.data],
        "has_more": first.has_more,
        "body": plain(first),
    }


def large(client: Client, path: str) -> Any:
    """Upload a file from the disk, and read it back in a stream."""
    made = client.do("files.create", file=Path(path), purpose="batch")
    return {"uploaded": plain(made), "read": client.digest(made.id)}


SCENARIOS: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (batch, started, finished, cancelled, calls, pages, large)
}


def play(task: dict[str, Any]) -> dict[str, Any]:
    """Play the scenarios of a task side by side.

    :param task: ``mode``, ``url``, ``token`` and ``scenarios``: by the name of each, ``play`` with a name of
        :data:`SCENARIOS` and what else it takes; ``options`` of the client.
    :returns: the client's ``version`` and ``results`` by name; a scenario that failed has ``raised`` alone.
    """

    def one(given: dict[str, Any]) -> Any:
        given = dict(given)
        scenario = SCENARIOS[given.pop("play")]
        try:
            client = Client(task["mode"], task["url"], task["token"], **task.get("options", {}))
            return scenario(client, **given)
        except Exception:
            return {"raised": traceback.format_exc()}

    names = list(task["scenarios"])
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        results = pool.map(one, task["scenarios"].values())
        return {"version": openai.__version__, "results": dict(zip(names, results, strict=True))}


if __name__ == "__main__":
    for task in sys.stdin:
        print(json.dumps(play(json.loads(task))), flush=True)
