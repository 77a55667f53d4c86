# SPDX-License-Identifier: Apache-2.0
"""A user's function that ends its process is told by its name, wherever a task of the job calls it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_server import Handler, listening

from .place import Case, Place, assert_nothing_happened, assert_one_sentence, function

ENDS = """
import os
def make(row, response=None):
    if row["id"] == {row}: os._exit({code})
    return "x"
"""


@pytest.mark.turn(0, 4)
def test_in_the_preflight(place: Place, ray_here: Any) -> None:
    given = function(place, ENDS.format(row=0, code=0))
    expected = f"prompt_function: {given['prompt_function']!r} ended the process"
    assert_one_sentence(place.refused(**given), Case("", lambda _: {}, (expected, "raise an exception")))
    assert_nothing_happened(place)


@pytest.mark.turn(6)
def test_while_keys_are_made(place: Place, ray_here: Any) -> None:
    given = function(place, ENDS.format(row=1200, code=1))
    source = place.jsonl(*({"id": number, "text": "x"} for number in range(1300)))
    failed = place.refused(source=source, deduplicate=True, **given)
    expected = f"prompt_function: {given['prompt_function']!r} ended the process"
    assert_one_sentence(failed, Case("", lambda _: {}, (expected, "raise an exception")))


@pytest.mark.turn(3, 7)
def test_while_the_dataset_is_published(place: Place, ray_here: Any) -> None:
    (path,) = function(place, ENDS.format(row=5, code=1)).values()
    failed = place.refused(postprocess=path)
    expected = f"postprocess: {path!r} ended the process"
    assert_one_sentence(failed, Case("", lambda _: {}, (expected, "raise an exception")))


class Answers(Handler):
    """Answers each request alike."""

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        self.body()
        answer = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
        self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})


@pytest.mark.turn(1, 5)
def test_while_ray_data_llm_reads(place: Place, ray_here: Any) -> None:
    """By itself, Ray Data would repeat its task for ever."""
    given = function(place, ENDS.format(row=1200, code=1))
    source = place.jsonl(*({"id": number, "text": "x"} for number in range(1300)))
    with listening(Answers) as port:
        failed = place.refused(
            source=source,
            engine="ray_data_llm",
            processor={"config": "HttpRequestProcessorConfig", "url": f"http://127.0.0.1:{port}/"},
            deduplicate=False,
            sampling={"temperature": 0},
            max_restarts=1,
            no_progress_timeout=60,
            **given,
        )
    expected = f"prompt_function: {given['prompt_function']!r} ended the process"
    assert_one_sentence(failed, Case("", lambda _: {}, (expected, "raise an exception")))
