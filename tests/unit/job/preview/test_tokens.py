# SPDX-License-Identifier: Apache-2.0
"""Lengths of rows that are several requests of the engine: each must fit, and not their sum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.preview import tokens
from airflow_provider_raybatch.job.preview.tokens import EchoCounter, PromptLength, VllmCounter
from airflow_provider_raybatch.job.row import Request
from tests.support.specs import spec
from tests.unit.job.engine.test_pair_encoder import Letters, asked

SCORE: dict[str, Any] = {"model_task": "score", "query": "{row.q}", "documents_column": "d", "prompt": None}


def test_chunks_and_pairs_of_an_echo_count_one_by_one() -> None:
    text = Request(prompt="a b c d e f g")
    chunked = EchoCounter(spec(engine="echo", model_task="embed", chunk_tokens=3))
    assert chunked.count([text]) == [PromptLength(3, 7)]
    assert EchoCounter(spec(engine="echo", model_task="embed")).count([text]) == [PromptLength(7, 7)]
    scored = EchoCounter(spec(engine="echo", **SCORE))
    assert scored.count([asked("q", "a b", "c d e")]) == [PromptLength(4, 7)]


def test_what_is_cut_of_pairs_is_counted_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    job = spec(on_overlong="truncate", **SCORE)
    config = SimpleNamespace(get_vocab_size=lambda: 256)
    made = pooling_encoder(job, Letters(), config), 6, {}
    monkeypatch.setattr(tokens, "prompt_encoder", lambda _: made)
    found = VllmCounter(job).count([asked("a", "b", "bcde")])
    assert found == [PromptLength(8, 11, cut=2)]
