# SPDX-License-Identifier: Apache-2.0
"""Log probabilities as an engine gets them from vLLM; tests/vllm compares them with those of ``LLM``."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from airflow_provider_raybatch.job.engine.detokenize import LogprobReader
from airflow_provider_raybatch.job.row import Completion, Response
from tests.support.chat_models import MODELS

pytest.importorskip("tokenizers")  # clusters' Python of the checks has no vLLM
TOKENIZER = MODELS["qwen"].tokenizer()
A, B, C = TOKENIZER.encode("abc")


def flat(*positions: list[tuple[int, float, int | None]]) -> SimpleNamespace:
    """Return what vLLM makes of tokens with their log probabilities and ranks."""
    found = [entry for position in positions for entry in position]
    ends = np.cumsum([len(position) for position in positions]).tolist()
    return SimpleNamespace(
        start_indices=[0, *ends[:-1]],
        end_indices=ends,
        token_ids=[one[0] for one in found],
        logprobs=[one[1] for one in found],
        ranks=[one[2] for one in found],
    )


def test_the_chosen_token_comes_first_and_then_the_likeliest() -> None:
    """Which may have it again, as in vLLM's flat lists."""
    made = LogprobReader(TOKENIZER).read(flat([(A, -1.5, 2), (B, -0.5, 1)], [(C, -0.25, 1), (C, -0.25, 1)]))
    assert made.ids.tolist() == [[A, B], [C, C]]
    assert made.logprobs.tolist() == [[-1.5, -0.5], [-0.25, -0.25]]
    assert made.ranks.tolist() == [2, 1]
    assert made.texts == {A: "a", B: "b", C: "c"}


def test_a_prompts_first_token_has_an_id_alone() -> None:
    made = LogprobReader(TOKENIZER).read(flat([], [(B, -0.5, 1), (C, -math.inf, None)]), first=A)
    assert made.ids.tolist() == [[A, -1], [B, C]]
    assert np.isnan(made.logprobs[0]).all()
    assert made.logprobs[1].tolist() == [-0.5, -math.inf]
    assert made.ranks.tolist() == [0, 1]
    assert made.texts[A] == "a"


def test_a_text_without_tokens_has_empty_arrays() -> None:
    made = LogprobReader(TOKENIZER).read(flat())
    assert (made.ids.shape, made.logprobs.shape, made.ranks.shape, made.texts) == ((0, 1), (0, 1), (0,), {})


def test_a_response_gets_those_that_its_request_asked_for() -> None:
    plain = Response((Completion("a", "stop", 1), Completion("b", "stop", 1)), 1)
    outputs = [SimpleNamespace(logprobs=flat([(A, -1.0, 1)])), SimpleNamespace(logprobs=None)]
    asked = SimpleNamespace(outputs=outputs, prompt_logprobs=flat([]), prompt_token_ids=[C])
    made = LogprobReader(TOKENIZER).added(plain, asked)
    assert [set(one.extra) for one in made.completions] == [{"logprobs"}, set()]
    assert made.extra["prompt_logprobs"].ids.tolist() == [[C]]
    nothing = SimpleNamespace(outputs=[SimpleNamespace(logprobs=None)] * 2, prompt_logprobs=None)
    assert LogprobReader(TOKENIZER).added(plain, nothing) == plain
