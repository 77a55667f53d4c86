# SPDX-License-Identifier: Apache-2.0
"""Requests with images: placeholders in their text, and the model's processors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine import vllm_compat_models
from airflow_provider_raybatch.job.engine.images import ImageProcessors, ImagePrompts, at_once
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.pictures import asking_about, images

QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
STAND_IN = {"type": "stand-in"}


def template(placeholder: Callable[[int], str]) -> Callable[[list[dict[str, Any]]], str]:
    """One that writes a placeholder for each image, in order."""

    def render(messages: list[dict[str, Any]]) -> str:
        count, text = 0, ""
        for part in (part for message in messages for part in message["content"]):
            count += part == STAND_IN
            text += placeholder(count) if part == STAND_IN else part["text"]
        return text

    return render


def refusing(messages: list[dict[str, Any]]) -> str:
    raise ValueError("no template")


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ImagePrompts]:
    """Makes one for a model with such a placeholder."""

    def make(
        placeholder: Callable[[int], str],
        render: Any = None,
        special: Sequence[str] = (),
        most: int = 9,
        **fields: Any,
    ) -> ImagePrompts:
        for name, value in {
            "most_images": lambda _: most,
            "needs_images_to_tokenise": lambda _: False,
            "placeholder": lambda _, number: placeholder(number),
            "stand_in": lambda: STAND_IN,
        }.items():
            monkeypatch.setattr(vllm_compat_models, name, value)
        config = SimpleNamespace()
        return ImagePrompts(render or template(placeholder), None, config, special, **fields)

    return make


def why(made: Any) -> str:
    assert isinstance(made, RowFailure)
    assert made.step == "media"
    return made.reason


def test_numbered_placeholders_are_counted_together(prompts: Any) -> None:
    of_phi = prompts(lambda number: f"<|image_{number}|>")
    assert of_phi.rendered(asking_about("x", 2)) == "<|image_1|><|image_2|>x"
    assert "has 3 placeholders '<|image_1|>' and the row has 2 images" in why(
        of_phi.rendered(asking_about("<|image_3|>", 2))
    )
    raw = Request(prompt="<|image_1|> <|image_2|>", images=images(2))
    assert of_phi.rendered(raw) == raw.prompt
    assert "has 2 placeholders" in why(of_phi.rendered(replace(raw, images=images(1))))


@pytest.mark.parametrize("part", ["<|image_pad|>", "<|vision_start|>", QWEN])
def test_a_part_of_a_placeholder_counts(prompts: Any, part: str) -> None:
    """The model's processor looks for some of its tokens alone."""
    special = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>"]
    of_qwen = prompts(lambda _: QWEN, special=special)
    assert of_qwen.rendered(asking_about("<|im_end|>")) == f"{QWEN}<|im_end|>"
    assert "has 2 placeholders" in why(of_qwen.rendered(asking_about(part)))


def test_a_template_that_writes_another_is_not_checked(prompts: Any) -> None:
    """Its count says nothing. VLLM's own error is all there is then."""
    other = prompts(lambda _: "<image>", template(lambda _: "[IMG]"))
    assert other.rendered(asking_about("<image>")) == "[IMG]<image>"
    assert prompts(lambda _: "").rendered(asking_about("x")) == "x"


def test_without_a_template_raw_prompts_are_checked(prompts: Any) -> None:
    base = prompts(lambda _: "<image>", refusing)
    assert base.rendered(Request(prompt="<image>", images=images(1))) == "<image>"
    reason = why(base.rendered(Request(prompt="x", images=images(1))))
    assert reason.endswith("write '<image>' once for each image, and set special_tokens_in_text to 'keep'")
    with pytest.raises(ValueError, match="no template"):
        base.rendered(asking_about("x"))


@pytest.mark.parametrize(("in_each", "concerned"), [(False, False), (True, True)])
def test_requests_without_images_are_checked_where_asked(
    prompts: Any, in_each: bool, concerned: bool
) -> None:
    made = prompts(lambda _: "<image>", in_each=in_each)
    forged = asking_about("<image>", 0)
    assert made.concern(forged) is concerned
    assert made.concern(asking_about("x"))
    assert why(made.rendered(forged)).endswith("or set special_tokens_in_text to 'escape'")


def test_a_model_without_vision_checks_no_text(prompts: Any) -> None:
    made = prompts(lambda _: "", most=0, in_each=True)
    assert not made.concern(asking_about("x", 0))
    assert why(made.rendered(asking_about("x"))).startswith("the row has 1 image, and the model can't be")


def test_no_more_images_than_the_engine_takes(prompts: Any) -> None:
    made = prompts(lambda _: "<image>", most=2)
    assert made.rendered(asking_about("x", 2)) == "<image><image>x"
    assert "has 3 images, and the engine takes 2 a request" in why(made.rendered(asking_about("x", 3)))


class Renderer:
    """Copied as vLLM's, unless its model's classes don't allow that."""

    def __init__(self, can_be_copied: bool = True) -> None:
        self.can_be_copied = can_be_copied
        self.in_use = threading.Lock()


@pytest.fixture(autouse=True)
def _copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(renderer: Renderer) -> Renderer:
        if not renderer.can_be_copied:
            raise TypeError("cannot pickle")
        return Renderer()

    monkeypatch.setattr(vllm_compat_models, "with_own_processor", copied)


def used(processors: ImageProcessors, threads: int) -> set[Any]:
    """The renderers that so many threads get, which all want one at once; no two threads have the same."""
    begin = threading.Barrier(threads)

    def use() -> list[Renderer]:
        seen = []
        begin.wait(30)
        for _ in range(20):
            with processors.one() as renderer:
                assert renderer.in_use.acquire(blocking=False)
                time.sleep(0.001)
                seen.append(renderer)
                renderer.in_use.release()
        return seen

    with ThreadPoolExecutor(threads) as pool:
        return {one for made in [pool.submit(use) for _ in range(threads)] for one in made.result()}


def test_one_request_at_a_time_needs_no_copy() -> None:
    renderer = Renderer()
    assert used(ImageProcessors(renderer), 1) == {renderer}


@pytest.mark.parametrize("threads", [2, 8])
def test_many_threads_share_two(threads: int) -> None:
    renderer = Renderer()
    processors = ImageProcessors(renderer, most=2)
    with processors.one() as first, processors.one() as second:
        assert first is renderer is not second
    assert used(processors, threads) == {first, second}


def test_eight_threads_share_four() -> None:
    assert len(used(ImageProcessors(Renderer(), most=4), 8)) == 4


@pytest.mark.parametrize(("cores", "requests"), [(1, 2), (2, 2), (4, 2), (6, 3), (8, 4), (96, 4)])
def test_half_of_the_cores_process_images(cores: int, requests: int) -> None:
    assert at_once(cores) == requests


@pytest.mark.parametrize("threads", [2, 8])
def test_a_model_that_can_not_be_copied_has_one(threads: int) -> None:
    renderer = Renderer(can_be_copied=False)
    assert used(ImageProcessors(renderer, most=4), threads) == {renderer}


def test_a_request_that_fails_gives_its_renderer_back() -> None:
    processors = ImageProcessors(Renderer(can_be_copied=False))
    for _ in range(3):
        with pytest.raises(ValueError, match="no pixels"), processors.one():
            raise ValueError("no pixels")
