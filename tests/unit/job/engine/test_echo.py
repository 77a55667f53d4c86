# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.echo import EchoEngine
from airflow_provider_raybatch.job.engine.echo_args import check_echo, check_names
from airflow_provider_raybatch.job.engine_process.proxy import open_engine
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from tests.support.approved import AssertSentences
from tests.support.pictures import Pixels, asking_about, images, picture
from tests.support.specs import spec, submitted


def answers(
    *requests: Request,
    sampling: dict[str, Any] | None = None,
    **options: Any,
) -> list[Response | RowFailure]:
    """Return the engine's responses to requests that are sent at once."""
    engine = open_engine(spec(engine="echo", engine_args=options, sampling=sampling or {}))

    async def ask() -> list[Any]:
        encoded = engine.encode(requests)
        return list(
            await asyncio.gather(
                *(
                    asyncio.sleep(0, one) if isinstance(one, RowFailure) else engine.generate(one)
                    for one in encoded
                )
            )
        )

    raw = asyncio.run(ask())
    good = engine.decode([one for one in raw if not isinstance(one, RowFailure)])
    return [one if isinstance(one, RowFailure) else good.pop(0) for one in raw]


def answer(text: str, sampling: dict[str, Any] | None = None, **options: Any) -> Response:
    (made,) = answers(Request(prompt=text), sampling=sampling, **options)
    assert isinstance(made, Response)
    return made


def test_echo_returns_the_prompt() -> None:
    chat = Request(
        messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "a b  c"}]
    )
    made = answers(chat, Request(prompt="raw"))
    assert [(one.completions[0].text, one.input_tokens) for one in made if isinstance(one, Response)] == [
        ("a b c", 5),
        ("raw", 1),
    ]


def test_response_ends_at_stop_strings() -> None:
    cut = answer("a b c d", {"max_tokens": 2}).completions[0]
    assert (cut.text, cut.finish_reason, cut.output_tokens) == ("a b", "length", 2)
    assert [one.text for one in answer("a b", {"n": 3}).completions] == ["a b", "a b #1", "a b #2"]
    whole = answer("a b", {"max_tokens": 2}).completions[0]
    assert (whole.text, whole.finish_reason) == ("a b", "stop")


def test_responses_with_a_temperature_are_deterministic() -> None:
    words = " ".join(str(number) for number in range(50))
    hot = answer(words, {"temperature": 1, "seed": 1})
    assert hot == answer(words, {"temperature": 1, "seed": 1})
    assert hot != answer(words, {"temperature": 1, "seed": 2})
    assert sorted(hot.completions[0].text.split()) == sorted(words.split())


def test_structured_outputs_have_their_form() -> None:
    choices = {"structured_outputs": {"choice": ["yes", "no", "maybe"]}}
    picked = {answer(f"question {number}", choices).completions[0].text for number in range(30)}
    assert picked == {"yes", "no", "maybe"}
    for form in ({"json": {"type": "object"}}, {"json_object": True}):
        assert json.loads(answer('say "x"', {"structured_outputs": form}).completions[0].text) == {
            "echo": 'say "x"'
        }


def test_rows_fail_as_they_would_with_a_model() -> None:
    made = answers(
        Request(prompt="good one"),
        Request(prompt="far too many words for it"),
        Request(prompt="a bad one"),
        max_model_len=5,
        fail_pattern="bad",
    )
    assert isinstance(made[0], Response)
    assert made[1] == RowFailure(
        "tokenize",
        "the prompt has 6 tokens and max_model_len is 5, which leaves no room for a response",
    )
    assert made[2] == RowFailure("engine", "the echo engine fails requests that contain 'bad'")


def test_row_sampling_wins_and_junk_in_it_fails_that_row() -> None:
    made = answers(
        Request(prompt="a b c", sampling={"max_tokens": 1}),
        Request(prompt="a b c", sampling={"max_tokens": "many"}),
        Request(prompt="a b c", sampling={"n": 0}),
        Request(prompt="a b c", sampling={"structured_outputs": {"choice": []}}),
        sampling={"max_tokens": 2, "top_p": 0.9},
    )
    assert isinstance(made[0], Response)
    assert made[0].completions[0].text == "a"
    assert [one.step for one in made[1:] if isinstance(one, RowFailure)] == ["engine"] * 3
    assert "sampling.max_tokens: " in str(made[1])
    assert "'many'" in str(made[1])
    assert "structured_outputs has an empty list of choices; give at least one" in str(made[3])


def test_wrong_options_are_found_before_it_starts(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: check_echo(spec(**fields)), SpecError)


def logged(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("slots", "events"), [(1, "open start end start end"), (2, "open start start end end")]
)
def test_requests_take_time_and_wait_for_slots(tmp_path: Path, slots: int, events: str) -> None:
    two = [Request(prompt="a b c d e")] * 2
    answers(*two, seconds_per_token=0.01, max_num_seqs=slots, request_log=str(tmp_path))
    lines = logged(tmp_path)
    assert [line["event"] for line in lines] == events.split()
    assert lines[-1]["at"] - lines[1]["at"] >= 0.05


def test_tokens_of_requests_in_flight_are_reported() -> None:
    """They are lost, and yet paid for, when its process dies."""
    engine = open_engine(spec(engine="echo", engine_args={"seconds_per_token": 0.001}))
    (encoded,) = engine.encode([Request(prompt="a " * 8000)])

    async def ask() -> int:
        asked = asyncio.ensure_future(engine.generate(encoded))
        await asyncio.sleep(0.1)
        made = engine.tokens_in_flight()
        asked.cancel()
        await asyncio.wait([asked])
        return made

    assert 90 <= asyncio.run(ask()) < 8000
    assert engine.tokens_in_flight() == 0


@pytest.mark.parametrize("pattern", ["kill_pattern", "hang_pattern"])
def test_log_has_starts_of_requests_that_never_end(tmp_path: Path, pattern: str) -> None:
    engine = open_engine(submitted(engine="echo", engine_args={"request_log": str(tmp_path), pattern: "bad"}))
    (one,) = engine.encode([Request(prompt="a bad one")])

    async def ask() -> None:
        with pytest.raises((EngineDeadError, TimeoutError)):
            await asyncio.wait_for(engine.generate(one), 0.05)

    asyncio.run(ask())
    opened, started = logged(tmp_path)
    assert (opened["event"], opened["submission"]) == ("open", "raybatch-x-0")
    assert (started["event"], started["prompt"]) == ("start", "a bad one")


def test_names_are_checked_where_vllm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dry run finds quickly what vLLM would refuse; without vLLM it names what it could not check."""
    from airflow_provider_raybatch.job.engine import vllm_compat

    misspelt = spec(sampling={"guided_choice": ["a"], "temperature": 0, "top_k": 5})
    names = (frozenset({"temperature", "top_k"}), frozenset({"choice"}))
    monkeypatch.setattr(vllm_compat, "sampling_names", lambda: names)
    with pytest.raises(PreflightError, match=r"vLLM .*has no parameter 'guided_choice'"):
        check_names(misspelt)
    assert check_names(spec(sampling={"temperature": 0, "top_k": 5})) == []
    monkeypatch.setattr(vllm_compat, "sampling_names", lambda: None)
    assert check_names(misspelt) == ["guided_choice", "top_k"]


PAIR = {
    "type": "object",
    "properties": {
        "question": {"type": "string", "minLength": 60, "maxLength": 70},
        "level": {"type": "integer", "minimum": 3, "maximum": 5},
        "share": {"type": ["number", "null"], "maximum": -1},
        "near": {"type": "integer", "minimum": 2.5, "exclusiveMaximum": 4},
        "above": {"type": "integer", "exclusiveMinimum": 20},
        "kind": {"enum": ["a", "b"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "good": {"type": "boolean"},
    },
    "required": ["question", "level", "share", "near", "above", "kind", "tags", "good"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("form", [PAIR, json.dumps(PAIR)])
def test_a_json_schema_is_answered_with_what_fits_it(form: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    requests = [Request(prompt=f"say number {number} of all") for number in range(20)]
    sampling = {"structured_outputs": {"json": form}}
    texts = [one.completions[0].text for one in answers(*requests, sampling=sampling)]  # type: ignore[union-attr]
    for text in texts:
        jsonschema.validate(json.loads(text), PAIR)
    assert len(set(texts)) == 20
    assert texts == [one.completions[0].text for one in answers(*requests, sampling=sampling)]  # type: ignore[union-attr]


RED, BLUE = picture(4, 3), picture(2, 5, (0, 0, 255))


def answer_about(request: Request, *pixels: Pixels, sampling: Any = None, **options: Any) -> Any:
    engine = EchoEngine(spec(engine="echo", engine_args=options, sampling=sampling or {}))
    (encoded,) = engine.encode([request])
    if isinstance(encoded, RowFailure):
        return encoded
    return asyncio.run(engine.generate(engine.attach(encoded, pixels)))


def told(response: Response) -> str:
    return response.completions[0].text


def test_an_answer_begins_with_its_pictures_in_order() -> None:
    made = answer_about(asking_about("what is this", 2), BLUE, RED)
    assert told(made) == "[2x5 #0000ff] [4x3 #ff0000] what is this"
    assert (made.input_tokens, made.output_tokens) == (5, 5)


def test_a_raw_prompt_may_have_pictures() -> None:
    made = answer_about(Request(prompt="<image> what", images=images(1)), RED)
    assert told(made) == "[4x3 #ff0000] <image> what"


def test_a_colour_is_the_mean() -> None:
    half = np.concatenate([picture(1, 1, (255, 0, 0)), picture(1, 1, (0, 0, 0))])
    assert told(answer_about(asking_about("x"), half)).startswith("[1x2 #800000]")


def test_pictures_count_as_words_of_a_limit() -> None:
    assert (
        told(answer_about(asking_about("a b", 2), RED, BLUE, sampling={"max_tokens": 1})) == "[4x3 #ff0000]"
    )
    assert isinstance(answer_about(asking_about("a b", 2), RED, BLUE, max_model_len=5), Response)
    failure = answer_about(asking_about("a b", 2), max_model_len=4)
    assert (failure.step, "has 4 tokens" in failure.reason) == ("tokenize", True)


def test_a_choice_depends_on_the_picture() -> None:
    choice = {"structured_outputs": {"choice": [str(number) for number in range(100)]}}
    made = {told(answer_about(asking_about("x"), one, sampling=choice)) for one in (RED, RED, BLUE)}
    assert len(made) == 2


@pytest.mark.parametrize("pattern", ["word", "#ff0000"])
def test_patterns_find_text_and_pictures(pattern: str) -> None:
    request = asking_about("word")
    assert answer_about(request, RED, fail_pattern=pattern).step == "engine"
    with pytest.raises(EngineDeadError):
        answer_about(request, RED, kill_pattern=pattern)
    assert told(answer_about(asking_about("other"), BLUE, fail_pattern=pattern)) == "[2x5 #0000ff] other"


def test_an_echo_of_a_text_model_takes_no_picture() -> None:
    failure = answer_about(asking_about("x"), takes_images=False)
    assert (failure.step, failure.reason.partition(";")[0]) == ("media", "the echo takes no images")
    assert told(answer_about(Request(prompt="x"), takes_images=False)) == "x"
