# SPDX-License-Identifier: Apache-2.0
"""A row's label predicts the length of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order import lengths


def limit(tokens: Any) -> int:
    return lengths.label(Request(prompt="x" * 1000, sampling={"max_tokens": tokens}))


@pytest.mark.parametrize("tokens", [1, 2, 16, 1000, 131_072, 2**31])
def test_a_limit_is_known_within_a_tenth(tokens: int) -> None:
    assert lengths.limits()[limit(tokens)] == pytest.approx(tokens, rel=0.1)


def test_labels_distinguish_limits_and_prompt_lengths() -> None:
    prompts = {lengths.label(Request(prompt="x" * size)) for size in (0, 1, 10, 1000, 10**6)}
    assert len(prompts) == 4  # lengths 0 and 1 have the same label
    assert not prompts & lengths.limits().keys()
    assert max(prompts) < 256


@pytest.mark.parametrize("nonsense", [None, 0, -3, "7", 2.5])
def test_invalid_limit_is_left_to_the_engine(nonsense: Any) -> None:
    assert limit(nonsense) == lengths.label(Request(prompt="x" * 1000))


def test_a_chat_is_as_long_as_its_texts() -> None:
    parts = [{"type": "text", "text": "x" * 500}, {"type": "image_url", "image_url": {"url": "y" * 9999}}]
    messages = [{"role": "system", "content": "x" * 500}, {"role": "user", "content": parts}]
    assert lengths.label(Request(messages=messages)) == lengths.label(Request(prompt="x" * 1000))
    assert lengths.label(Request(messages=[{"role": "assistant", "tool_calls": []}])) == lengths.label(
        Request(prompt="")
    )


def test_limits_order_rows_until_lengths_are_learned() -> None:
    """A row with a high limit that usually ends early is short."""
    costs = lengths.Costs()
    high, low, prompt = limit(1000), limit(100), lengths.label(Request(prompt="x"))
    assert costs.rank(high) > costs.rank(prompt) > costs.rank(low)
    assert not any(costs.learn(high, 10) for _ in range(15))
    assert costs.rank(high) > costs.rank(low)
    assert costs.learn(high, 10)
    assert costs.rank(high) < costs.rank(low)
    assert costs.rank(prompt) == costs.rank(high)  # nothing else is known
