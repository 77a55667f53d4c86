# SPDX-License-Identifier: Apache-2.0
"""An echo tells what it has seen, so that tests find a picture that came to another row."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from tests.support.pictures import Pixels, asking_about, images, picture
from tests.support.specs import spec

RED, BLUE = picture(4, 3), picture(2, 5, (0, 0, 255))


def answer(request: Request, *pixels: Pixels, sampling: Any = None, **options: Any) -> Any:
    engine = EchoEngine(spec(engine="echo", engine_args=options, sampling=sampling or {}))
    (encoded,) = engine.encode([request])
    if isinstance(encoded, RowFailure):
        return encoded
    return asyncio.run(engine.generate(engine.attach(encoded, pixels)))


def told(response: Response) -> str:
    return response.completions[0].text


def test_an_answer_begins_with_its_pictures_in_order() -> None:
    made = answer(asking_about("what is this", 2), BLUE, RED)
    assert told(made) == "[2x5 #0000ff] [4x3 #ff0000] what is this"
    assert (made.input_tokens, made.output_tokens) == (5, 5)


def test_a_raw_prompt_may_have_pictures() -> None:
    made = answer(Request(prompt="<image> what", images=images(1)), RED)
    assert told(made) == "[4x3 #ff0000] <image> what"


def test_a_colour_is_the_mean() -> None:
    half = np.concatenate([picture(1, 1, (255, 0, 0)), picture(1, 1, (0, 0, 0))])
    assert told(answer(asking_about("x"), half)).startswith("[1x2 #800000]")


def test_pictures_count_as_words_of_a_limit() -> None:
    assert told(answer(asking_about("a b", 2), RED, BLUE, sampling={"max_tokens": 1})) == "[4x3 #ff0000]"
    assert isinstance(answer(asking_about("a b", 2), RED, BLUE, max_model_len=5), Response)
    failure = answer(asking_about("a b", 2), max_model_len=4)
    assert (failure.step, "has 4 tokens" in failure.reason) == ("tokenize", True)


def test_a_choice_depends_on_the_picture() -> None:
    choice = {"structured_outputs": {"choice": [str(number) for number in range(100)]}}
    made = {told(answer(asking_about("x"), one, sampling=choice)) for one in (RED, RED, BLUE)}
    assert len(made) == 2


@pytest.mark.parametrize("pattern", ["word", "#ff0000"])
def test_patterns_find_text_and_pictures(pattern: str) -> None:
    request = asking_about("word")
    assert answer(request, RED, fail_pattern=pattern).step == "engine"
    with pytest.raises(EngineDeadError):
        answer(request, RED, kill_pattern=pattern)
    assert told(answer(asking_about("other"), BLUE, fail_pattern=pattern)) == "[2x5 #0000ff] other"


def test_an_echo_of_a_text_model_takes_no_picture() -> None:
    failure = answer(asking_about("x"), takes_images=False)
    assert (failure.step, failure.reason.partition(";")[0]) == ("media", "the echo takes no images")
    assert told(answer(Request(prompt="x"), takes_images=False)) == "x"
