# SPDX-License-Identifier: Apache-2.0
"""Arguments of texts in chunks."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.task import MODEL_TASKS
from tests.support.specs import spec, spec_error


@pytest.mark.parametrize("model_task", sorted(MODEL_TASKS.keys() - {"embed"}))
@pytest.mark.parametrize("name", ["chunk_tokens", "chunk_overlap_tokens"])
def test_other_kinds_of_tasks_have_no_chunks(model_task: str, name: str) -> None:
    pairs = {"prompt": None, "query": "fox", "document": "{row.text}"} if model_task == "score" else {}
    made = spec_error(model_task=model_task, **{"chunk_tokens": 8, name: 4}, **pairs)
    assert made.startswith("chunk_")
    assert f"it has no effect with model_task '{model_task}', which makes no vectors" in made


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"chunk_tokens": 0}, "chunk_tokens: it must be at least 1, but it is 0."),
        (
            {"chunk_overlap_tokens": 4},
            "chunk_overlap_tokens: it has no effect without chunk_tokens; give that, too, or remove it.",
        ),
        (
            {"chunk_tokens": 9, "chunk_overlap_tokens": 5},
            "chunk_overlap_tokens: it may be at most half of chunk_tokens (9), but it is 5.",
        ),
        (
            {"chunk_tokens": 9, "on_overlong": "truncate"},
            "on_overlong: with chunk_tokens, each text is cut into chunks that the model takes, so none is "
            "overlong; remove it.",
        ),
        (
            {"chunk_tokens": 9, "postprocess": "m:f"},
            "postprocess: with chunk_tokens, a row has several vectors, and it would be called once; work on "
            "the dataset instead.",
        ),
    ],
)
def test_chunks_that_can_not_be_are_refused(fields: dict[str, Any], sentence: str) -> None:
    assert spec_error(model_task="embed", **fields) == sentence


def test_chunk_tokens_and_chunk_overlap_tokens_decide_a_vector() -> None:
    whole = spec(model_task="embed")
    made = [
        spec(model_task="embed", chunk_tokens=8),
        spec(model_task="embed", chunk_tokens=9),
        spec(model_task="embed", chunk_tokens=9, chunk_overlap_tokens=2),
    ]
    for digests in ({one.response_digest for one in made}, {one.fingerprint for one in made}):
        assert len(digests) == 3
    assert whole.pooled == {"model_task": "embed", "pooling": {}}
