# SPDX-License-Identifier: Apache-2.0
"""Responses of the engine where tokens are filled in, over a model of a few lines instead of vLLM's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine import vllm_compat_parsers
from airflow_provider_raybatch.job.row import Completion, Request
from tests.support.vllm_engine import vllm_engine

pytest.importorskip("vllm")
transformers = pytest.importorskip("transformers")
pytest.importorskip("xgrammar")
from tests.support.grammar_model import GrammarModel  # noqa: E402 - imports xgrammar

MODEL = Path(__file__).parents[4] / "dags_examples/demo_model/model"
TOKENIZER = transformers.AutoTokenizer.from_pretrained(MODEL)
TOKEN_TEXTS = vllm_compat_parsers.token_texts(TOKENIZER)
GRAMMAR = GrammarModel(TOKENIZER)
LABELS = {
    "sentiment": ["positive", "negative", "neutral"],
    "shades": ["very positive", "very negative", "positive", "negative"],
    "one begins with another": ["yes", "no", "not sure"],
    "ratings": [str(number) for number in range(1, 11)],
    "half characters": ["ähnlich", "öfter", "日本語", "日本人"],
}


class Model:
    """Chooses among the tokens that vLLM's grammar allows, by all tokens that come before.

    :param eager: probability of one of the longest tokens, 0 to 1.
    """

    errored = False

    def __init__(self, eager: float) -> None:
        self._eager = eager
        self._chance = random.Random(1)
        self.asked: list[tuple[list[int], Any]] = []

    async def generate(self, prompt: Any, params: Any, _: str) -> AsyncIterator[Any]:
        ids = list(prompt["prompt_token_ids"])
        self.asked.append((ids, params))
        outputs = [self._completion(ids, params, number) for number in range(params.n)]
        yield SimpleNamespace(finished=True, prompt_token_ids=ids, outputs=outputs, num_cached_tokens=0)

    def _completion(self, prompt: list[int], params: Any, number: int) -> Any:
        matcher, ids = GRAMMAR.begin(params.structured_outputs.choice), list[int]()
        while len(ids) < params.max_tokens and not matcher.is_terminated():
            chance = self._chance_of(prompt, ids, params, number)
            ids.append(GRAMMAR.next(matcher, chance, self._eager))
        reason = "stop" if matcher.is_terminated() else "length"
        return SimpleNamespace(token_ids=ids, finish_reason=reason, text="")

    def _chance_of(self, prompt: list[int], ids: list[int], params: Any, number: int) -> random.Random:
        """Penalties look at the tokens of a response alone, and a seed's numbers begin with it."""
        penalised = ids if params.frequency_penalty or params.presence_penalty else ()
        known = f"{prompt + ids}{penalised}"
        if params.temperature == 0:
            return random.Random(known)
        return self._chance if params.seed is None else random.Random(f"{known}{params.seed}{number}{ids}")


@pytest.fixture(autouse=True)
def _known_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_compat_parsers, "token_texts", lambda _: TOKEN_TEXTS)  # slow


def engine_of(model: Model, fill_in: bool = True) -> Any:
    """A VllmEngine over `model`."""
    engine = vllm_engine(TOKENIZER, 500, llm=model)
    engine._fill_in = fill_in
    return engine


def generated(engine: Any, sampling: dict[str, Any], rows: int = 5) -> tuple[list[list[Completion]], int]:
    """The completions of each row, and the tokens that all rows cost."""

    async def generate(encoded: list[Any]) -> list[Any]:
        return list(await asyncio.gather(*map(engine.generate, encoded)))

    requests = [Request(prompt=f"Review {number}:", sampling=sampling) for number in range(rows)]
    raw = asyncio.run(generate(engine.encode(requests)))
    completions = [list(response.completions) for response in engine.decode(raw)]
    return completions, sum(engine.tokens(one)[1] for one in raw)


def ends(rows: list[list[Completion]]) -> list[list[tuple[str, str]]]:
    return [[(one.text, one.finish_reason) for one in row] for row in rows]


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("eager", [0.0, 0.7])
@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0},
        {"temperature": 0, "repetition_penalty": 1.2},
        {"temperature": 0, "frequency_penalty": 0.5},
        {"temperature": 1.0, "seed": 5, "n": 2},
    ],
    ids=["greedy", "repetition penalty", "frequency penalty", "seed"],
)
def test_filled_responses_are_those_in_full(name: str, eager: float, given: dict[str, Any]) -> None:
    sampling = {"max_tokens": 3, "structured_outputs": {"choice": LABELS[name]}, **given}
    found, _ = generated(engine_of(Model(eager)), sampling)
    expected, _ = generated(engine_of(Model(eager), fill_in=False), sampling)
    assert ends(found) == ends(expected)
    assert {reason for row in ends(found) for _, reason in row} == {"stop"}
    assert {text for row in ends(found) for text, _ in row} <= set(LABELS[name])


@pytest.mark.parametrize("name", ["sentiment", "shades", "one begins with another", "ratings"])
@pytest.mark.parametrize("given", [{"temperature": 0}, {"temperature": 1.0, "n": 2}])
def test_a_text_that_is_still_open_goes_on(name: str, given: dict[str, Any]) -> None:
    """A model that takes one letter after the other: no token is generated twice, and most texts are cut."""
    model = Model(eager=0.0)
    sampling = {"structured_outputs": {"choice": LABELS[name]}, **given}
    found, tokens = generated(engine_of(model), sampling, 12)
    assert tokens == sum(one.output_tokens for row in found for one in row)
    assert {text for row in ends(found) for text, _ in row} <= set(LABELS[name])
    assert any(one.filled_tokens for row in found for one in row)
    further = [one for one in model.asked if one[1].structured_outputs.choice != LABELS[name]]
    assert further, "texts were open after the first tokens"
    assert {params.n for _, params in further} == {1}
    firsts = [ids for ids, _ in model.asked[: len(found)]]
    assert all(any(ids[: len(first)] == first for first in firsts) for ids, _ in further)


@pytest.mark.parametrize("most", [1, 4, 13, 4.0])
@pytest.mark.parametrize("fill_in", [True, False])
@pytest.mark.parametrize("outputs", [{"choice": LABELS["shades"]}, {"json": {"enum": LABELS["shades"]}}])
def test_max_tokens_cuts_no_choice_off(most: float, fill_in: bool, outputs: dict[str, Any]) -> None:
    engine = engine_of(Model(eager=0.0), fill_in)
    (encoded,) = engine.encode([
        Request(prompt="Review:", sampling={"max_tokens": most, "structured_outputs": outputs})
    ])
    longest = len("very positive") + (2 if "json" in outputs else 0)
    assert max(encoded.most, encoded.params.max_tokens) == longest + 1


def test_where_the_context_could_cut_a_choice_all_is_generated() -> None:
    engine = engine_of(Model(eager=0.0))
    prompt = "Review:"
    engine._max_model_len = len(TOKENIZER.encode(prompt)) + len("very positive")
    engine._forget_requests()
    sampling = {"temperature": 0, "max_tokens": 3, "structured_outputs": {"choice": LABELS["shades"]}}
    (encoded,) = engine.encode([Request(prompt=prompt, sampling=sampling)])
    assert encoded.choices is None
    assert encoded.params.max_tokens == len("very positive")
