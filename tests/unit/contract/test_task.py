# SPDX-License-Identifier: Apache-2.0
"""Which arguments a kind of task takes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.specs import spec, spec_error

CHAT = "which takes one text a row and no chat; use prompt_column, or prompt for a template of it."

ADAPTER = (
    "which uses no LoRA adapter; merge it into the model (PEFT's merge_and_unload), and give that as model."
)


def test_an_unknown_model_task_is_refused() -> None:
    assert spec_error(model_task="sing") == "model_task: it must be 'generate' or 'embed', but it is 'sing'."


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("sampling", {"temperature": 0}, "which generates no text; remove it."),
        ("sampling", {"structured_outputs": {"choice": ["a"]}}, "which generates no text; remove it."),
        ("sampling", {"max_tokens": 5}, "which generates no text; remove it."),
        ("sampling_column", "s", "which generates no text; remove it."),
        ("response_format", "json_object", "which generates no text; remove it."),
        ("on_truncated", "error", "which generates no text; remove it."),
        ("system_prompt", "Be short.", CHAT),
        ("messages", [{"role": "user", "content": "{row.x}"}], CHAT),
        ("messages_column", "chat", CHAT),
        ("chat_template", "{{ messages }}", CHAT),
        ("chat_template_kwargs", {"thinking": False}, CHAT),
        ("adapter", "/models/adapter", ADAPTER),
    ],
)
def test_embed_refuses_what_is_about_generated_text(name: str, value: Any, why: str) -> None:
    made = spec_error(**{"model_task": "embed", name: value})
    assert made == f"{name}: it has no effect with model_task 'embed', {why}"


def test_generate_refuses_what_is_about_vectors() -> None:
    assert spec_error(pooling={"dimensions": 4}) == (
        "pooling: it has no effect with model_task 'generate', which has no pooling parameters; remove it, "
        "or set model_task."
    )
    assert spec_error(embed_dtype="float16") == (
        "embed_dtype: it has no effect with model_task 'generate', which makes no vectors; remove it, or set "
        "model_task to 'embed'."
    )


@pytest.mark.parametrize(
    ("pooling", "sentence"),
    [
        (
            {"normalize": True},
            "pooling: model_task 'embed' has no parameter 'normalize'; write 'use_activation'.",
        ),
        (
            {"task": "embed"},
            "pooling: model_task 'embed' has no parameter 'task'; it has 'dimensions' and 'use_activation'.",
        ),
        (
            {"dimensions": 0},
            "pooling: dimensions: it must be a whole number of at least 1, but it is 0.",
        ),
        (
            {"dimensions": True},
            "pooling: dimensions: it must be a whole number of at least 1, but it is True.",
        ),
        ({"use_activation": 1}, "pooling: use_activation: it must be true or false, but it is 1."),
    ],
)
def test_wrong_pooling_is_refused(pooling: dict[str, Any], sentence: str) -> None:
    assert spec_error(model_task="embed", pooling=pooling) == sentence


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
