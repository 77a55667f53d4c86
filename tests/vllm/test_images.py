# SPDX-License-Identifier: Apache-2.0
"""Requests with images get what ``LLM.chat`` gives the same chats, and what can't be right is refused."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat_models
from airflow_provider_raybatch.job.media.load import Loaded
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.row import IMAGE_PART, Request, RowFailure
from tests.support.pictures import Pixels, asking_about, images, picture

pytest.importorskip("vllm")
from tests.support.beside_vllm import own_engine, own_llm
from tests.support.real_model import MODEL, spec
from tests.support.small_models import WORDS
from tests.support.vision_model import CONTEXT, PLACEHOLDER, TEMPLATE, vision_model

pytestmark = [pytest.mark.slow, pytest.mark.vllm]

MOST = 3
ROWS = 50
GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 * 1024**2,
    "max_num_seqs": 16,
    "dtype": "float32",
    "limit_mm_per_prompt": {"image": MOST},
    "mm_processor_cache_gb": 0,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return vision_model(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[Any]:
    with own_llm(model=model, **ARGS) as made:
        yield made


@pytest.fixture(scope="module")
def engine(llm: Any, model: str) -> Iterator[Any]:
    with own_engine(spec(model=model, engine_args=ARGS, images=["picture"])) as made:
        yield made


def ours(engine: Any, *asked: tuple[Request, list[Pixels]]) -> list[Any]:
    """Responses and failures, as a replica gets them: all rows at once, their images in threads."""

    async def one(encoded: Any, pixels: list[Pixels]) -> Any:
        if isinstance(encoded, RowFailure):
            return encoded
        whole = await asyncio.to_thread(engine.attach, encoded, pixels) if pixels else encoded
        return whole if isinstance(whole, RowFailure) else await engine.generate(whole)

    async def each() -> list[Any]:
        encoded = engine.encode([request for request, _ in asked])
        return await asyncio.gather(
            *(one(*pair) for pair in zip(encoded, (p for _, p in asked), strict=True))
        )

    made = engine.loop.run_until_complete(each())
    responses = iter(engine.decode([one for one in made if not isinstance(one, RowFailure)]))
    return [one if isinstance(one, RowFailure) else next(responses) for one in made]


def theirs(llm: Any, *asked: tuple[Request, list[Pixels]]) -> list[Any]:
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    chats = [with_pictures(request.messages or [], pixels) for request, pixels in asked]
    params = [sampling_params(request.sampling) for request, _ in asked]
    return list(llm.chat(chats, params, use_tqdm=False))


def with_pictures(messages: list[dict[str, Any]], pixels: list[Pixels]) -> list[dict[str, Any]]:
    from PIL import Image

    left = iter(pixels)

    def part(one: Any) -> Any:
        return {"type": "image_pil", "image_pil": Image.fromarray(next(left))} if one == IMAGE_PART else one

    return [{**message, "content": list(map(part, message["content"]))} for message in messages]


def noise(rng: random.Random) -> Pixels:
    """A picture of a size and a kind of its own."""
    shape = (rng.randrange(1, 200), rng.randrange(1, 200), 3)
    return np.random.default_rng(rng.randrange(2**32)).integers(0, 256, shape, np.uint8)


def row(rng: random.Random) -> tuple[Request, list[Pixels]]:
    """A chat in which pictures stand anywhere."""
    count = rng.randint(1, MOST)
    parts: list[dict[str, Any]] = [dict(IMAGE_PART) for _ in range(count)]
    parts += [{"type": "text", "text": " ".join(rng.choices(WORDS, k=5))} for _ in range(2)]
    rng.shuffle(parts)
    messages = [{"role": "user", "content": parts}]
    return Request(messages, images=images(count), sampling=GREEDY), [noise(rng) for _ in range(count)]


def said(response: Any) -> tuple[str, int]:
    return response.completions[0].text, response.input_tokens


def test_answers_are_those_of_llm_chat(engine: Any, llm: Any) -> None:
    rng = random.Random(41)
    asked = [row(rng) for _ in range(ROWS)]
    expected = [(one.outputs[0].text, len(one.prompt_token_ids)) for one in theirs(llm, *asked)]
    assert len({text for text, _ in expected}) > ROWS // 2
    assert list(map(said, ours(engine, *asked))) == expected


def test_two_requests_at_once_have_processors_of_their_own(engine: Any) -> None:
    """Which give the same; neither's tokenizer, which two threads can't share, is the other's."""
    (encoded,) = engine.encode([asking_about("red fox")])
    each = engine._renderer, vllm_compat_models.with_own_processor(engine._renderer)
    theirs = [one.mm_processor.info.get_hf_processor() for one in each]
    ids, picture = encoded.asked.ids, noise(random.Random(7))
    made = [vllm_compat_models.engine_input(one, ids, [picture]) for one in each]
    for part in "tokenizer", "image_processor":
        assert getattr(theirs[0], part) is not getattr(theirs[1], part)
    assert made[0]["prompt_token_ids"] == made[1]["prompt_token_ids"]
    values = [one["mm_kwargs"]["image"][0].get_data()["pixel_values"] for one in made]
    assert values[0].equal(values[1])


@pytest.mark.parametrize("part", ["tokenizer", "image_processor"])
def test_a_processor_that_shares_a_part_is_not_used_twice(
    engine: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some models keep theirs by other keys than the tokenizer."""
    renderer = engine._renderer
    info = type(renderer.mm_processor.info)
    made = info.get_hf_processor
    shared = getattr(made(renderer.mm_processor.info), part)

    def sharing(self: Any, **given: Any) -> Any:
        processor = copy.copy(made(self, **given))
        setattr(processor, part, shared)
        return processor

    monkeypatch.setattr(info, "get_hf_processor", sharing)
    with pytest.raises(TypeError, match=type(shared).__name__):
        vllm_compat_models.with_own_processor(renderer)


def test_a_picture_decides_the_answer(engine: Any) -> None:
    """And the same picture in two requests at once is no trouble."""
    request = asking_about("red fox", sampling=GREEDY)
    red, blue = picture(), picture(colour=(0, 0, 255))
    first, again, other = ours(engine, (request, [red]), (request, [red]), (request, [blue]))
    assert said(first) == said(again) != said(other)


def test_a_raw_prompt_has_its_placeholders(engine: Any, llm: Any) -> None:
    from PIL import Image

    prompt = f"red {PLACEHOLDER} fox"
    asked = Request(prompt=prompt, images=images(1), sampling=GREEDY)
    (made,) = ours(engine, (asked, [picture()]))
    from airflow_provider_raybatch.job.engine.vllm_args import sampling_params

    given = {"prompt": prompt, "multi_modal_data": {"image": Image.fromarray(picture())}}
    (expected,) = llm.generate([given], sampling_params(GREEDY), use_tqdm=False)
    assert said(made) == (expected.outputs[0].text, len(expected.prompt_token_ids))


def test_a_choice_is_made_in_full(engine: Any, llm: Any) -> None:
    """Tokens that a choice forces are generated: going on needs the images once more.

    The vocabulary has no space.
    """
    sampling = {"temperature": 0.0, "structured_outputs": {"choice": ["redfox", "reddog", "deepbluesea"]}}
    asked = asking_about("old dog", sampling=sampling), [picture()]
    (made,), (expected,) = ours(engine, asked), theirs(llm, asked)
    assert made.completions[0].text == expected.outputs[0].text
    assert made.filled_tokens == 0


@pytest.mark.parametrize(
    ("request_", "begins"),
    [
        (
            Request(prompt="fox", images=images(1)),
            "the prompt has 0 placeholders '<image>' and the row has 1",
        ),
        (asking_about("<image>"), "the chat has 2 placeholders '<image>' and the row has 1 image;"),
        (asking_about("<image>", 0), "the chat has 1 placeholder '<image>' and the row has 0 images;"),
        (Request(prompt="<image>"), "the prompt has 1 placeholder '<image>' and the row has 0 images;"),
        (asking_about("fox", MOST + 1), "the row has 4 images, and the engine takes 3 a request;"),
    ],
    ids=["none in a prompt", "forged", "forged without an image", "without its image", "over the limit"],
)
def test_a_wrong_count_never_comes_to_vllm(engine: Any, request_: Request, begins: str) -> None:
    (failure,) = engine.encode([request_])
    assert (failure.step, failure.reason[: len(begins)]) == ("media", begins)


def test_escaped_placeholders_are_text(engine: Any, model: str) -> None:
    engine.renewed(spec(model=model, engine_args=ARGS, special_tokens_in_text="escape"))
    (made,) = ours(engine, (asking_about("<image> fox", sampling=GREEDY), [picture()]))
    engine.renewed(spec(model=model, engine_args=ARGS, images=["picture"]))
    assert len(made.completions) == 1


def test_a_template_without_images_is_found(engine: Any, model: str) -> None:
    """Where a template writes no images, vLLM puts them first, and takes a row's text for their place."""
    words = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    engine.renewed(spec(model=model, engine_args=ARGS, chat_template=words))
    good, forged = engine.encode([asking_about("fox", 2), asking_about("<image> <image> fox")])
    engine.renewed(spec(model=model, engine_args=ARGS, images=["picture"]))
    assert not isinstance(good, RowFailure)
    assert forged.reason.startswith("the chat has 2 placeholders '<image>' and the row has 1 image")


def test_images_take_room_of_the_context(engine: Any) -> None:
    """The placeholder is one token, and what it stands for shows when the images are there."""
    fox = " ".join(["fox"] * (CONTEXT - 20))
    (failure,) = ours(engine, (asking_about(fox, MOST), [picture(200, 200)] * MOST))
    assert failure.step == "tokenize"
    assert f"max_model_len is {CONTEXT}" in failure.reason


def test_what_the_processor_refuses_is_the_row_s_failure(engine: Any) -> None:
    (failure,) = ours(engine, (asking_about("fox"), [np.zeros((0, 8, 3), np.uint8)]))
    assert failure.step == "media"
    assert not failure.reason.startswith("the engine got")


@pytest.mark.parametrize("given", [0, 1, 3])
def test_images_without_a_place_fail_their_row(engine: Any, given: int) -> None:
    (encoded,) = engine.encode([asking_about("fox", 2)])
    failure = engine.attach(encoded, [picture()] * given)
    assert failure.step == "media"
    assert failure.reason.startswith(f"the engine got {given} image")
    assert "for a request with 2 placeholders" in failure.reason


@pytest.mark.parametrize("overrides", [{}, {"hf_overrides": {"use_cache": True}}], ids=["files", "vllm"])
def test_a_model_without_vision_is_refused(overrides: dict[str, Any]) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    asked = spec(engine_args={"enforce_eager": True, **overrides})
    with pytest.raises(PreflightError, match=rf"^images: model '{MODEL}' can't be given any: it "):
        check_model(AskedModel(asked, [asking_about("fox")], {}))


def test_checks_of_a_chat_see_it_with_its_images(model: str) -> None:
    """Here the one for a model that reasons before JSON."""
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    asked = spec(
        model=model,
        engine_args=ARGS,
        chat_template=f"{TEMPLATE}<think>",
        response_format="json_object",
    )
    with pytest.raises(PreflightError, match=r"^response_format: .* reasons before it answers"):
        check_model(AskedModel(asked, [asking_about("fox")], {}))


def test_the_first_rows_show_wrong_counts(model: str) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    asked = spec(model=model, engine_args=ARGS)
    rows = [asking_about("fox"), asking_about("<image>"), asking_about("dog", MOST + 1)]
    found = check_model(AskedModel(asked, rows, {}))
    assert [(place, one.step) for place, one in found.failures] == [(1, "media"), (2, "media")]
    with pytest.raises(PreflightError, match=r"^images: none of the first 2 rows becomes tokens; the first"):
        check_model(AskedModel(asked, rows[1:], {}))


def test_a_plan_counts_images_as_the_engine_does(
    engine: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_raybatch.job.preview import counters

    rng = random.Random(5)
    asked = [row(rng) for _ in range(8)]
    pixels = iter([one for _, one in asked])
    monkeypatch.setattr(counters, "load", lambda *_: Loaded(next(pixels), ()))
    access: Any = object()
    counter = counters.VllmCounter(spec(model=model, engine_args=ARGS, images=["picture"]), access)
    found = counter.count([request for request, _ in asked])
    assert [one.sent for one in found] == [one.input_tokens for one in ours(engine, *asked)]
    assert {one.images for one in found} == {"processor"}
