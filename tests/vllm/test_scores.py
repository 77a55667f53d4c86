# SPDX-License-Identifier: Apache-2.0
"""Pairs of a query and a document beside vLLM's own, with a real vLLM and small random models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.row import Request

pytest.importorskip("vllm")
from tests.support.small_models import classifier
from tests.support.specs import spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAIRS = [
    ("harbor", "lantern orchard"),
    ("A red fox?", "deep blue sea, and the old dog"),
    ("copper copper meadow", "Quartz [SEP] river"),
]
ARGS = {"dtype": "float32", "enforce_eager": True}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}"


def scoring(model: str, **fields: Any) -> Any:
    asked = {"query": "{row.q}", "document": "{row.d}", "engine_args": ARGS, **fields}
    return spec(engine="vllm", model=model, model_task="score", **asked)


def requests(pairs: list[tuple[str, str]]) -> list[Request]:
    return [
        Request([{"role": "query", "content": query}, {"role": "document", "content": document}])
        for query, document in pairs
    ]


@pytest.mark.parametrize(
    "kind",
    [
        "bert",
        *(
            pytest.param(kind, marks=pytest.mark.thorough("pairs of more tokenizers; bert's run always"))
            for kind in ("modernbert", "qwen3")
        ),
    ],
)
def test_pairs_are_tokenised_as_in_vllm(kind: str, tmp_path: Path) -> None:
    """Token types included, which BERT needs and the others don't have."""
    from vllm.entrypoints.pooling.factories import init_pooling_io_processors
    from vllm.entrypoints.pooling.scoring.utils import compress_token_type_ids

    from airflow_provider_raybatch.job.engine import vllm_compat
    from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder

    model = classifier(tmp_path, kind, ["LABEL_0"])
    config = vllm_compat.model_config({"model": model, **ARGS})
    template = SimpleNamespace(
        chat_template=None, chat_template_content_format="auto", trust_request_chat_template=False
    )
    whole = SimpleNamespace(model_config=config)
    renderer = vllm_compat.renderer_for(config)
    theirs: Any = init_pooling_io_processors(("classify",), whole, renderer, template)["cross-encoder"]
    for chat_template in (None, TEMPLATE):
        encoder = pooling_encoder(scoring(model, chat_template=chat_template), theirs.tokenizer, config)
        for pair, made in zip(PAIRS, encoder.encode(requests(PAIRS)), strict=True):
            _, prompt = theirs.get_score_prompt(*pair, {}, chat_template=chat_template)
            types = prompt.get("token_type_ids")
            (found,) = made.pairs
            assert found.ids == prompt["prompt_token_ids"]
            assert found.second == (None if types is None else compress_token_type_ids(types))
            assert (found.second is not None) is (kind == "bert")


def test_scores_are_those_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without token types they would be others, and vLLM says nothing."""
    from vllm import LLM

    from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
    from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one more process takes half a minute
    model = classifier(tmp_path, "bert", ["LABEL_0"])
    llm = LLM(model, **ARGS, kv_cache_memory_bytes=64 * 1024**2)
    theirs = np.array([
        llm.score(query, document, use_tqdm=False)[0].outputs.score for query, document in PAIRS
    ])
    encoder = pooling_encoder(scoring(model), llm.get_tokenizer(), llm.llm_engine.vllm_config.model_config)
    pairs = [pair for made in encoder.encode(requests(PAIRS)) for pair in made.pairs]

    def scores(seconds: list[int | None]) -> Any:
        made = llm.encode(
            [vllm_compat.as_tokens(pair.ids) for pair in pairs],
            pooling_params=[vllm_compat_models.pooling_params("score", {}, second) for second in seconds],
            pooling_task="classify",
            use_tqdm=False,
        )
        return np.array([vllm_compat_models.pooled(one)[0] for one in made])

    assert np.abs(scores([pair.second for pair in pairs]) - theirs).max() < 1e-5
    assert np.abs(scores([None] * len(pairs)) - theirs).max() > 1e-2


def test_a_chat_is_rendered_without_a_turn_to_come(tmp_path: Path) -> None:
    """A reward model judges the answer in it; special tokens are those of the template alone."""
    from airflow_provider_raybatch.job.engine import vllm_compat
    from airflow_provider_raybatch.job.engine.pair_encoder import pooling_encoder

    model = classifier(tmp_path, "bert", ["LABEL_0"])
    config = vllm_compat.model_config({"model": model, **ARGS})
    template = "{{ messages[1]['content'] }}{% if add_generation_prompt %} dog{% endif %}"
    job = spec(
        engine="vllm", model=model, model_task="classify", messages_column="chat", chat_template=template
    )
    renderer = vllm_compat.renderer_for(config)
    encoder = pooling_encoder(job, renderer.tokenizer, config, renderer)
    chat = Request([{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "red fox"}])
    assert encoder.encode([chat, Request(prompt="red fox")]) == [
        renderer.tokenizer("red fox", add_special_tokens=False)["input_ids"],
        renderer.tokenizer("red fox")["input_ids"],
    ]


@pytest.mark.parametrize(
    ("labels", "task", "sentence"),
    [
        (["yes", "no"], "score", "has 2 labels, and model_task 'score' needs a cross-encoder (reranker)"),
        (["yes", "no"], "classify", None),
        (["LABEL_0"], "classify", None),
        (["LABEL_0"], "score", None),
    ],
)
def test_labels_are_counted_before_an_engine_starts(
    labels: list[str], task: str, sentence: str | None, tmp_path: Path
) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    model = classifier(tmp_path, "bert", labels)
    asked = requests(PAIRS)
    job = scoring(model)
    if task == "classify":
        asked = [Request(prompt=query) for query, _ in PAIRS]
        job = spec(engine="vllm", model=model, model_task="classify", engine_args=ARGS)
    if sentence is None:
        found = check_model(AskedModel(job, asked, {}))
        assert (found.sampled, found.failures, found.context) == (3, (), 64)
        return
    with pytest.raises(PreflightError) as refused:
        check_model(AskedModel(job, asked, {}))
    assert sentence in str(refused.value)
