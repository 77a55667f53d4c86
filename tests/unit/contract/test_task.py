# SPDX-License-Identifier: Apache-2.0
"""Which arguments a kind of task takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

CHAT = "which takes one text a row and no chat; use prompt_column, or prompt for a template of it."

ADAPTER = (
    "which uses no LoRA adapter; merge it into the model (PEFT's merge_and_unload), and give that as model."
)


def test_an_unknown_model_task_is_refused() -> None:
    assert spec_error(model_task="sing") == (
        "model_task: it must be one of 'generate', 'embed', 'classify', 'score', but it is 'sing'."
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("sampling", {"temperature": 0}, "which generates no text; remove it."),
        ("sampling", {"structured_outputs": {"choice": ["a"]}}, "which generates no text; remove it."),
        ("sampling", {"max_tokens": 5}, "which generates no text; remove it."),
        ("sampling_column", "s", "which generates no text; remove it."),
        ("response_format", "json_object", "which generates no text; remove it."),
        ("on_truncated", "error", "which generates no text; remove it."),
        ("adapter", "/models/adapter", ADAPTER),
    ],
)
@pytest.mark.parametrize("task", ["embed", "classify"])
def test_pooling_refuses_what_is_about_generated_text(task: str, name: str, value: Any, why: str) -> None:
    made = spec_error(**{"model_task": task, name: value})
    assert made == f"{name}: it has no effect with model_task {task!r}, {why}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("system_prompt", "Be short."),
        ("messages", [{"role": "user", "content": "{row.x}"}]),
        ("messages_column", "chat"),
        ("chat_template", "{{ messages }}"),
        ("chat_template_kwargs", {"thinking": False}),
    ],
)
def test_embed_refuses_chats(name: str, value: Any) -> None:
    made = spec_error(**{"model_task": "embed", name: value})
    assert made == f"{name}: it has no effect with model_task 'embed', {CHAT}"


def test_classify_takes_whole_chats_as_they_are() -> None:
    assert spec(model_task="classify", messages_column="chat", chat_template="{{ messages }}").pools
    assert spec_error(model_task="classify", messages_column="chat", on_overlong="truncate") == (
        "on_overlong: 'truncate' cuts the end of a text, which is what a model judges of messages_column; "
        "shorten the chats before."
    )
    assert spec_error(model_task="classify", messages_column="chat", system_prompt="Be short.") == (
        "system_prompt: it has no effect with model_task 'classify', which takes a text, or a chat as it is; "
        "put it into messages."
    )


def test_generate_refuses_what_is_about_vectors() -> None:
    assert spec_error(pooling={"dimensions": 4}) == (
        "pooling: it has no effect with model_task 'generate', which has no pooling parameters; remove it, "
        "or set model_task."
    )
    for name in ("generate", "classify"):
        assert spec_error(embed_dtype="float16", model_task=name) == (
            f"embed_dtype: it has no effect with model_task {name!r}, which makes no vectors; remove it, or "
            "set model_task to 'embed'."
        )


def test_wrong_pooling_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **pooling: spec_error(model_task="embed", pooling=pooling))


def test_classify_has_an_activation_alone() -> None:
    known = "pooling: model_task 'classify' has no parameter"
    assert spec_error(model_task="classify", pooling={"dimensions": 4}) == (
        f"{known} 'dimensions'; it has 'use_activation'."
    )
    assert spec_error(model_task="classify", pooling={"softmax": False}) == (
        f"{known} 'softmax'; write 'use_activation'."
    )


def test_a_query_goes_with_score_alone() -> None:
    for name, value in (("query", "{row.q}"), ("top_n", 3)):
        for task in ("generate", "embed", "classify"):
            assert spec_error(**{"model_task": task, name: value}) == (
                f"{name}: it has no effect with model_task {task!r}, which compares nothing with a query; "
                "remove it, or set model_task to 'score'."
            )


def test_a_score_needs_a_query_and_documents(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(model_task="score", **fields))


def test_what_decides_a_score() -> None:
    """How many documents a ranking keeps does not."""
    fields = {"model_task": "score", "query": "{row.q}", "documents_column": "d"}
    one, other = spec(**fields), spec(**fields, top_n=2)
    assert one.response_digest == other.response_digest
    assert one.fingerprint != other.fingerprint
    assert one.response_digest != spec(**{**fields, "query": "{row.other}"}).response_digest
    assert one.column_arguments() == {"d": "documents_column", "q": "query"}


def test_rays_processor_makes_no_vectors() -> None:
    assert spec_error(model_task="embed", engine="ray_data_llm") == (
        "model_task: engine 'ray_data_llm' can't do 'embed'; use engine 'vllm'."
    )


def test_a_column_of_texts_may_be_cut() -> None:
    assert spec(model_task="embed", prompt_column="text", on_overlong="truncate").pools


def test_what_decides_a_vector() -> None:
    """Its numbers' type does not, and the context only where texts are cut."""
    fields = {"model_task": "embed", "engine_args": {"max_model_len": 9}}
    one = spec(**fields)
    assert one.response_digest == spec(model_task="embed", embed_dtype="float16").response_digest
    assert one.response_digest != spec(**fields, pooling={"dimensions": 2}).response_digest
    assert one.response_digest != spec().response_digest
    cut = spec(**fields, on_overlong="truncate")
    assert cut.response_digest != spec(model_task="embed", on_overlong="truncate").response_digest
    assert one.fingerprint != spec(**fields, embed_dtype="float16").fingerprint
