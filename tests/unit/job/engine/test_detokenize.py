# SPDX-License-Identifier: Apache-2.0
"""Batches of completions as the engine gives them; their texts are compared with vLLM's in tests/vllm."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.job.engine.detokenize import Detokenizer, Generated

transformers = pytest.importorskip("transformers")
MODEL = Path(__file__).parents[4] / "dags_examples/demo_model/model"


@pytest.fixture(scope="module")
def detokenizer() -> Detokenizer:
    return Detokenizer(transformers.AutoTokenizer.from_pretrained(MODEL))


def test_no_completions_have_no_texts(detokenizer: Detokenizer) -> None:
    """Transformers 5 decodes zero rows to one empty text; zero rows are left if vLLM made all texts."""
    assert detokenizer.decode([]) == []


def test_completions_without_tokens_are_empty(detokenizer: Detokenizer) -> None:
    assert detokenizer.decode([Generated((), (), "length"), Generated((), (2,), "stop")]) == ["", ""]
