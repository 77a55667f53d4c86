# SPDX-License-Identifier: Apache-2.0
"""Arguments of texts in chunks."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.task import MODEL_TASKS
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


@pytest.mark.parametrize("model_task", sorted(MODEL_TASKS.keys() - {"embed"}))
@pytest.mark.parametrize("name", ["chunk_tokens", "chunk_overlap_tokens"])
def test_other_kinds_of_tasks_have_no_chunks(model_task: str, name: str) -> None:
    pairs = {"prompt": None, "query": "fox", "document": "{row.text}"} if model_task == "score" else {}
    made = spec_error(model_task=model_task, **{"chunk_tokens": 8, name: 4}, **pairs)
    assert made.startswith("chunk_")
    assert f"it has no effect with model_task '{model_task}': it makes no vectors" in made


def test_chunks_that_can_not_be_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(model_task="embed", **fields))


def test_chunk_tokens_and_chunk_overlap_tokens_decide_a_vector() -> None:
    made = [
        spec(model_task="embed"),
        spec(model_task="embed", chunk_tokens=8),
        spec(model_task="embed", chunk_tokens=9),
        spec(model_task="embed", chunk_tokens=9, chunk_overlap_tokens=2),
    ]
    for digests in ({one.response_digest for one in made}, {one.fingerprint for one in made}):
        assert len(digests) == 4
