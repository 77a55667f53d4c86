# SPDX-License-Identifier: Apache-2.0
"""The engine of a pooling model, over what stands for vLLM's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.vllm_pooling import VllmPoolingEngine
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec
from tests.unit.job.engine.test_pair_encoder import Letters, asked
from tests.unit.job.engine.test_text_encoder import Words


class Located(Words):
    """Tells where its tokens lie, which are the letters of a text without blanks."""

    is_fast = True

    def __call__(self, text: Any, add_special_tokens: bool, **asked: bool) -> dict[str, Any]:
        if not asked:
            return super().__call__(text, add_special_tokens)
        found = [[(place, place + 1) for place, one in enumerate(each) if one != " "] for each in text]
        ids = [[ord(each[start]) for start, _ in of_text] for each, of_text in zip(text, found, strict=True)]
        return {"input_ids": ids, "offset_mapping": found}


class Pooler:
    """Makes a vector of a text's token ids, and fails where one is a ``!``."""

    def __init__(self, *tasks: str) -> None:
        self.tasks, self.errored = tasks, False
        self.inside = self.most_inside = 0
        self.params: list[Any] = []
        self.renderer = None
        model = SimpleNamespace(
            max_model_len=4,
            enforce_eager=True,
            encoder_config=None,
            get_vocab_size=lambda: 256,
            hf_config=SimpleNamespace(id2label={0: "low", 1: "middle", "2": "high"}),
        )
        scheduler = SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64)
        self.vllm_config = SimpleNamespace(model_config=model, scheduler_config=scheduler)

    def get_tokenizer(self) -> Any:
        return Located()

    def numbers(self, ids: list[int]) -> list[int]:
        return ids

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return self.tasks

    async def encode(self, ids: list[int], params: Any, number: str) -> AsyncIterator[Any]:
        self.params.append(params)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        if ord("!") in ids:
            self.errored = True
            raise RuntimeError("gone")
        numbers = np.array(self.numbers(ids), np.float64)
        data = SimpleNamespace(float=lambda: SimpleNamespace(numpy=lambda: numbers.astype(np.float32)))
        error = "no room" if ord("?") in ids else None
        yield SimpleNamespace(
            outputs=SimpleNamespace(data=data), finished=True, error=error, num_cached_tokens=1
        )


class Scorer(Pooler):
    """Makes one number of a pair, by a tokenizer with token types."""

    def numbers(self, ids: list[int]) -> list[int]:
        return [sum(ids)]

    def get_tokenizer(self) -> Any:
        return Letters()


@pytest.fixture(autouse=True)
def _without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_compat, "as_tokens", list)
    monkeypatch.setattr(vllm_compat, "engine_dead_error", lambda: KeyError)
    monkeypatch.setattr(vllm_compat_models, "pooling_params", lambda *asked: asked)


def engine_of(pooler: Pooler, **fields: Any) -> VllmPoolingEngine:
    engine = VllmPoolingEngine.__new__(VllmPoolingEngine)
    engine._llm, engine._numbers = pooler, itertools.count()
    return engine.renewed(spec(engine="vllm", model="m", **{"model_task": "embed", **fields}))


def answers(engine: VllmPoolingEngine, *texts: str | Request) -> list[Any]:
    """What the engine gives for each text or request: a response, or a failure."""

    async def made(encoded: list[Any]) -> list[Any]:
        return [one if isinstance(one, RowFailure) else await engine.generate(one) for one in encoded]

    raw = asyncio.run(
        made(engine.encode([Request(prompt=one) if isinstance(one, str) else one for one in texts]))
    )
    return [one if isinstance(one, RowFailure) else engine.decode([one])[0] for one in raw]


def test_each_text_has_its_vector_and_its_tokens() -> None:
    pooler = Pooler("embed", "token_embed")
    engine = engine_of(pooler, pooling={"use_activation": False})
    one, other = answers(engine, "a", "bc")
    assert (one.pooled.tolist(), one.pooled.dtype) == ([1.0, 97.0, 2.0], np.float32)
    assert [(each.input_tokens, each.cached_tokens, each.output_tokens) for each in (one, other)] == [
        (3, 1, 0),
        (4, 1, 0),
    ]
    assert pooler.params == [("embed", {"use_activation": False}, None)] * 2


def test_numbers_of_a_classifier_have_the_names_of_its_config() -> None:
    """Others if the config has not one for each."""
    engine = engine_of(Pooler("classify"), model_task="classify")
    named, unnamed = answers(engine, "a", "ab")
    assert (named.labels, named.pooled.tolist()) == (("low", "middle", "high"), [1.0, 97.0, 2.0])
    assert unnamed.labels == ("LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3")
    assert answers(engine_of(Pooler("embed")), "a")[0].labels == ()


def scorer(**fields: Any) -> tuple[Scorer, VllmPoolingEngine]:
    pooler = Scorer("classify")
    pooler.vllm_config.model_config.max_model_len = 6
    asked_for = {"prompt": None, "query": "q", "documents_column": "d", **fields}
    return pooler, engine_of(pooler, model_task="score", **asked_for)


def test_a_row_is_done_when_all_its_pairs_are() -> None:
    """Each pair is a request of its own, which tells where its second text begins."""
    pooler, engine = scorer()
    one, other = answers(engine, asked("a", "b", "c"), asked("ab", "c"))
    assert one.pooled.tolist() == [1 + 97 + 2 + 98 + 2, 1 + 97 + 2 + 99 + 2]
    assert (one.input_tokens, one.cached_tokens, other.pooled.shape, other.labels) == (10, 2, (1,), ())
    assert [second for _, _, second in pooler.params] == [3, 3, 4]


def test_one_pair_fails_its_row() -> None:
    _, engine = scorer()
    good, failed, long = answers(engine, asked("a", "b"), asked("a", "b", "?"), asked("a", "b", "cde"))
    assert good.pooled.tolist() == [200.0]
    assert (failed.step, failed.reason) == ("engine", "ValueError: no room")
    assert long.reason.startswith("document 1: the pair of query and document has 7 tokens")
    with pytest.raises(EngineDeadError):
        answers(engine, asked("a", "b", "!", "c"))


def test_long_text_fails_or_is_cut_alone() -> None:
    """A text of exactly the context is taken."""
    whole, failed = answers(engine_of(Pooler("embed")), "bc", "bcd")
    assert (whole.input_tokens, failed.step) == (4, "tokenize")
    (cut,) = answers(engine_of(Pooler("embed"), on_overlong="truncate"), "bcd")
    assert (cut.pooled.tolist(), cut.truncated_prompt_tokens) == ([1.0, 98.0, 99.0, 2.0], 1)


def test_each_chunk_of_a_text_has_its_vector() -> None:
    (made,) = answers(engine_of(Pooler("embed"), chunk_tokens=4), "ab cd ef")
    assert made.pooled.tolist() == [[1, 97, 98, 2], [1, 99, 100, 2], [1, 101, 102, 2]]
    assert made.extra["chunks"] == [
        {"text": "ab", "start": 0, "tokens": 4},
        {"text": "cd", "start": 3, "tokens": 4},
        {"text": "ef", "start": 6, "tokens": 4},
    ]
    assert (made.input_tokens, made.cached_tokens) == (12, 3)


def test_a_row_fails_with_the_first_chunk_that_does() -> None:
    failed, good = answers(engine_of(Pooler("embed"), chunk_tokens=4), "ab c? e?", "ab")
    assert failed == RowFailure("engine", "chunk 1 (from character 3): ValueError: no room", 12)
    assert good.input_tokens == 4


def test_a_long_text_leaves_room_in_the_engine() -> None:
    """However many chunks a text has, a few times what vLLM works on are there at once."""
    pooler = Pooler("embed")
    answers(engine_of(pooler, chunk_tokens=4), "ab " * 99)
    assert (len(pooler.params), pooler.most_inside) == (99, 16)


def test_an_error_of_one_request_fails_its_row() -> None:
    failed, good = answers(engine_of(Pooler("embed")), "?", "a")
    assert (failed.step, failed.reason) == ("engine", "ValueError: no room")
    assert good.input_tokens == 3


def test_a_dead_engine_is_told_from_a_failed_row() -> None:
    with pytest.raises(EngineDeadError):
        answers(engine_of(Pooler("embed")), "!")


def test_a_model_that_can_not_embed_ends_the_job() -> None:
    asyncio.run(engine_of(Pooler("embed", "token_embed")).prepare())
    with pytest.raises(PreflightError) as refused:
        asyncio.run(engine_of(Pooler("classify", "token_classify")).prepare())
    assert str(refused.value) == (
        "model: model_task 'embed' needs another model: vLLM can use 'm' for 'classify' and 'token_classify' "
        "alone."
    )


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"num_labels": 3}, 3),
        ({}, None),
        ({"num_labels": 2, "is_original_qwen3_reranker": True, "classifier_from_token": ["no", "yes"]}, 1),
        ({"num_labels": 2, "method": "from_2_way_softmax", "classifier_from_token": ["0", "1"]}, 1),
        ({"num_labels": 2, "method": "no_post_processing", "classifier_from_token": ["a", "b", "c"]}, 3),
        ({"num_labels": 1, "classifier_from_token": ["no", "yes"]}, 1),
    ],
)
def test_labels_of_a_head_that_is_made_of_tokens(config: dict[str, Any], count: int | None) -> None:
    """VLLM makes it, and counts its labels, when an engine starts; until then a config has two by default."""
    whole = SimpleNamespace(**config)
    assert vllm_compat_models.label_count(SimpleNamespace(hf_config=whole)) == count
    whole.get_text_config = lambda: whole
    assert vllm_compat_models.label_count(SimpleNamespace(hf_config=whole)) == count
    outer = SimpleNamespace(get_text_config=lambda: whole, num_labels=config.get("num_labels"))
    assert vllm_compat_models.label_count(SimpleNamespace(hf_config=outer)) == count
