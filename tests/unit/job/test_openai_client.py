# SPDX-License-Identifier: Apache-2.0
"""Batches that the official client's own code makes, answered in what its types read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support.openai_lines import COMPLETIONS, EMBEDDINGS, answered, by_id, line, run
from tests.support.whole_job import without_cluster

openai = pytest.importorskip("openai")
types = pytest.importorskip("openai.types")
chats = pytest.importorskip("openai.types.chat")
httpx2 = pytest.importorskip("httpx2")

MODEL = "gpt-4o-mini"


class Review(BaseModel):
    mood: str
    stars: int


class Wire:
    """A client whose requests go nowhere, and are kept."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        transport = httpx2.MockTransport(self._keep)
        self.client = openai.OpenAI(
            api_key="none",
            base_url="http://nowhere/v1",
            max_retries=0,
            http_client=httpx2.Client(transport=transport),
        )

    def _keep(self, request: Any) -> Any:
        self.bodies.append(json.loads(request.content))
        return httpx2.Response(400, json={"error": {"message": "kept"}})

    def body(self, call: Callable[..., Any], **given: Any) -> Any:
        """Return what the client sends for a call."""
        with pytest.raises(openai.BadRequestError):
            call(model=MODEL, **given)
        return self.bodies.pop()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def drawn(draw: random.Random) -> dict[str, Any]:
    """Return some of a chat's parameters."""
    every = {
        "temperature": draw.choice([0, 0.7, 2.0]),
        "top_p": draw.choice([0.1, 1]),
        "n": draw.choice([1, 2, 3]),
        "max_completion_tokens": draw.choice([1, 64]),
        "max_tokens": 100,
        "stop": draw.choice(["\n", ["a", "b"]]),
        "seed": draw.randrange(2**31),
        "presence_penalty": -0.5,
        "frequency_penalty": 1,
        "logit_bias": {"50256": -100},
        "logprobs": True,
        "user": "user-1",
        "metadata": {"job": "nightly"},
        "store": False,
        "response_format": draw.choice([{"type": "text"}, {"type": "json_object"}]),
    }
    return {name: every[name] for name in draw.sample(sorted(every), draw.randrange(6))}


def test_chats_of_the_client_run_unchanged(tmp_path: Path) -> None:
    wire, draw = Wire(), random.Random(7)
    client = wire.client.chat.completions
    lines = []
    for number in range(150):
        messages = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": f"Say {number}"},
        ]
        body = wire.body(client.create, messages=messages, **drawn(draw))
        lines.append(line(f"chat-{number}", body))
    for number in range(20):
        messages = [{"role": "user", "content": [{"type": "text", "text": f"Review {number}"}]}]
        body = wire.body(client.parse, messages=messages, response_format=Review)
        lines.append(line(f"parsed-{number}", body))
    for number in range(30):
        body = wire.body(wire.client.completions.create, prompt=f"Once {number}", max_tokens=8, logprobs=1)
        lines.append(line(f"raw-{number}", body, COMPLETIONS))
    assert len(lines) == 200
    output, errors = answered(run(tmp_path, lines, served_model_name=MODEL, batch_size=50, rows_per_part=64))
    cut = [one for one in errors if "is not JSON, cut off" in one["response"]["body"]["error"]["message"]]
    assert errors == cut
    good = by_id(output)
    for custom_id, asked in ((one["custom_id"], one["body"]) for one in lines):
        if custom_id not in good:
            continue
        body = good[custom_id]["body"]
        if custom_id.startswith("raw"):
            assert types.Completion.model_validate(body, strict=True).usage.completion_tokens == 2
            continue
        answer = chats.ChatCompletion.model_validate(body, strict=True)
        assert (answer.model, len(answer.choices)) == (MODEL, asked.get("n", 1))
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert all((choice.logprobs is not None) is bool(asked.get("logprobs")) for choice in answer.choices)
        if custom_id.startswith("parsed"):
            Review.model_validate_json(answer.choices[0].message.content)


def test_vectors_of_the_client_run_unchanged(tmp_path: Path) -> None:
    wire = Wire()
    bodies = [wire.body(wire.client.embeddings.create, input=f"text {number}") for number in range(5)]
    bodies.append(wire.body(wire.client.embeddings.create, input="text 0", encoding_format="float"))
    bodies.append(wire.body(wire.client.embeddings.create, input=["text 0", "text 1"]))
    lines = [line(f"id-{number}", body, EMBEDDINGS) for number, body in enumerate(bodies)]
    output, errors = answered(run(tmp_path, lines, model_task="embed", served_model_name=MODEL))
    assert errors == []
    found = {one["custom_id"]: one["response"]["body"] for one in output}
    read = types.CreateEmbeddingResponse.model_validate(found["id-5"], strict=True)
    assert len(read.data[0].embedding) == 64


def test_errors_read_as_the_client_raises_them(tmp_path: Path) -> None:
    lines = [line("a", {"model": MODEL, "messages": [], "stream": True})]
    _, (error) = answered(run(tmp_path, lines, served_model_name=MODEL))
    response = error[0]["response"]

    def answer(request: Any) -> Any:
        return httpx2.Response(response["status_code"], json=response["body"])

    client = openai.OpenAI(
        api_key="none",
        base_url="http://nowhere/v1",
        max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(answer)),
    )
    with pytest.raises(openai.BadRequestError) as caught:
        client.models.list()
    found = caught.value
    assert (found.param, found.code, found.type) == ("messages", "invalid_value", "invalid_request_error")
