# SPDX-License-Identifier: Apache-2.0
"""Lengths of rows that are several requests of the engine: each must fit, and not their sum."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder
from airflow_provider_raybatch.job.media.load import Loaded
from airflow_provider_raybatch.job.preview import counters, tokens
from airflow_provider_raybatch.job.preview.counters import EchoCounter, PromptLength, VllmCounter
from airflow_provider_raybatch.job.preview.inspection import Refusals
from airflow_provider_raybatch.job.row import Request, RowFailure
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.pictures import asking_about
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
    encoder = pooling_encoder(job, Letters(), config)
    made = SimpleNamespace(encoder=encoder, context=6, sampling_defaults={})
    monkeypatch.setattr(counters, "load_model", lambda _: made)
    found = VllmCounter(job).count([asked("a", "b", "bcde")])
    assert found == [PromptLength(8, 11, cut=2)]


def test_images_are_counted_by_the_processor_then_by_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away leaves rows to the mean; what can't be decoded or is overlong fails."""
    worst = RowFailure("media", "not an image")
    loaded: Any = iter([StorageError("away"), worst, 3, 5, 90])

    def load(images: Any, _: Any) -> Any:
        made: Any = next(loaded)
        if isinstance(made, Exception):
            raise made
        return Loaded([made] * len(images), ()) if isinstance(made, int) else made

    encoder = SimpleNamespace(
        encode=lambda requests: [[7, 7]] * len(requests),
        fitted=lambda request, ids, *_: ids,
        longest=len,
        images=SimpleNamespace(tokens_with=lambda ids, pixels: len(ids) + sum(pixels)),
    )
    made = SimpleNamespace(encoder=encoder, context=90, sampling_defaults={})
    monkeypatch.setattr(counters, "load_model", lambda _: made)
    monkeypatch.setattr(counters, "load", load)
    monkeypatch.setattr(counters, "_MOST_PROCESSED", 5)
    access: Any = object()
    counter, first = VllmCounter(spec(), access), [asking_about("x", count) for count in (1, 1, 2, 1)]
    found = counter.count([*first, asking_about("x"), asking_about("x", 3), Request(prompt="x")])
    assert [(one.whole, one.sent, one.images) for one in found] == [
        (2, 2, "none"), (2, -1, ""), (8, 8, "processor"), (7, 7, "processor"), (92, -1, "processor"),
        (2 + round(101 / 4 * 3), 2 + round(101 / 4 * 3), "mean"), (2, 2, ""),
    ]  # fmt: skip
    assert found[1].failure is worst
    assert found[4].failure is not None
    assert "92 tokens" in found[4].failure.reason
    tokens.Counted(lengths=found).note_images(refusals := Refusals(lambda _: None))
    assert refusals.notices == [
        "images: the model's processor counted the tokens of the images of 3 rows; those of 1 row more count "
        "with the mean of these; the tokens of the images of 1 row are not counted"
    ]
