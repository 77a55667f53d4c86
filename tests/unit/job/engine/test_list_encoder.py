# SPDX-License-Identifier: Apache-2.0
"""Token ids of embedding lines with lists of texts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.engine.text_encoder import Chunks, ListEncoder
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec
from tests.unit.job.engine.test_text_encoder import Words


def encoder(**fields: Any) -> Any:
    of = spec(model_task="embed", format="openai_batch", prompt=None, **fields)
    return pooling_encoder(of, Words(), SimpleNamespace(get_vocab_size=lambda: 128, encoder_config=None))


def several(*texts: str) -> Request:
    return Request(messages=[{"role": "user", "content": text} for text in texts])


def test_each_text_of_a_list_has_its_tokens() -> None:
    made = encoder()
    assert isinstance(made, ListEncoder)
    one, both, other = made.encode([Request(prompt="a"), several("b", "cd"), Request(prompt="e")])
    assert (one, other) == ([1, 97, 2], [1, 101, 2])
    assert isinstance(both, Chunks)
    assert [(chunk.text, chunk.ids, chunk.tokens) for chunk in both.chunks] == [
        ("b", [1, 98, 2], 3),
        ("cd", [1, 99, 100, 2], 4),
    ]
    assert made.fitted(several("b", "cd"), both, 4, None) is both
    assert (made.longest(one), made.longest(both)) == (3, 4)


def test_a_bad_text_fails_its_list_alone() -> None:
    bad, good = encoder().encode([several("a", "é"), several("a", "b")])
    assert isinstance(bad, RowFailure)
    assert isinstance(good, Chunks)


def test_a_long_text_of_a_list_fails_or_is_cut() -> None:
    request = several("a", "bcd")
    (ids,) = encoder().encode([request])
    failure = encoder().fitted(request, ids, 4, None)
    assert isinstance(failure, RowFailure)
    assert "the model takes 4" in failure.reason
    cut = encoder(on_overlong="truncate").fitted(request, ids, 4, None)
    assert [chunk.ids for chunk in cut.chunks] == [[1, 97, 2], [1, 98, 99, 2]]
