# SPDX-License-Identifier: Apache-2.0
"""Sizes of a model by its config, and configs that tell too little."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning.model_shape import shape_of
from tests.support.model_configs import DEEPSEEK_V3, MIXTRAL_8X7B, QWEN3_30B_A3B, SHAPES

LLAMA, GEMMA = SHAPES["8B"], SHAPES["270M"]


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (SHAPES["0.5B"], 0.494),
        (SHAPES["1B"], 1.236),
        (SHAPES["3B"], 3.213),
        (SHAPES["8B"], 8.030),
        (SHAPES["32B"], 32.76),
        (SHAPES["70B"], 70.55),
        (SHAPES["270M"], 0.268),
        (MIXTRAL_8X7B, 46.70),
        (QWEN3_30B_A3B, 30.53),
        (DEEPSEEK_V3, 671.0),
    ],
)
def test_parameters_are_those_that_are_published(config: dict[str, Any], billions: float) -> None:
    shape = shape_of(config)
    assert shape is not None
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize(
    ("config", "sliding", "window"),
    [
        (LLAMA, 0, 0),
        (GEMMA, 15, 512),
        # As older configs have it.
        ({**GEMMA, "layer_types": None, "sliding_window_pattern": 6}, 15, 512),
        ({**GEMMA, "layer_types": None}, 15, 512),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, 32, 4096),
        ({**LLAMA, "model_type": "mistral", "sliding_window": None}, 0, 0),
        ({**LLAMA, "model_type": "gemma2", "sliding_window": 4096}, 16, 4096),
        ({**SHAPES["0.5B"], "sliding_window": 4096, "use_sliding_window": False}, 0, 0),
        (
            {**SHAPES["0.5B"], "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20},
            4,
            4096,
        ),
    ],
)
def test_layers_with_a_sliding_window(config: dict[str, Any], sliding: int, window: int) -> None:
    shape = shape_of(config)
    assert shape is not None
    assert (shape.sliding_layers, shape.window) == (sliding, window)


@pytest.mark.parametrize(
    ("quantisation", "bits"),
    [
        (None, None),
        ({"quant_method": "fp8"}, 8.0),
        ({"quant_method": "awq", "bits": 4}, 4.2),
        ({"quant_method": "gptq", "bits": 8}, 8.0),
        ({"quant_method": "mxfp4"}, 4.25),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8.0),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, 4.2),
        ({"quant_method": "compressed-tensors"}, 0.0),
        ({"quant_method": "of_tomorrow"}, 0.0),
    ],
)
def test_bits_of_a_quantised_checkpoint(quantisation: dict[str, Any] | None, bits: float | None) -> None:
    shape = shape_of({**LLAMA, "quantization_config": quantisation})
    assert shape is not None
    assert shape.stored_bits == bits


def test_the_text_model_of_one_that_takes_images() -> None:
    config = {"model_type": "gemma3", "text_config": GEMMA, "vision_config": {}, "quantization_config": None}
    shape, alone = shape_of(config), shape_of(GEMMA)
    assert shape is not None
    assert alone is not None
    assert shape.has_encoder
    assert shape.parameters == alone.parameters


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in LLAMA.items() if key != name}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="empty"),
        pytest.param(
            {"model_type": "gemma3", "text_config": {"hidden_size": 2560}}, id="a text_config of defaults"
        ),
        *(
            pytest.param(without(name), id=f"no {name}")
            for name in (
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "vocab_size",
                "model_type",
            )
        ),
        pytest.param({**LLAMA, "hidden_size": "4096"}, id="text for a size"),
        pytest.param({**LLAMA, "num_hidden_layers": 0}, id="no layers"),
        pytest.param({**LLAMA, "num_key_value_heads": [8] * 32}, id="sizes that differ by layer"),
        pytest.param({**LLAMA, "model_type": "mamba2"}, id="another architecture"),
        pytest.param({**LLAMA, "model_type": ["llama"]}, id="no name for an architecture"),
        pytest.param({**GEMMA, "layer_types": ["linear_attention"] * 18}, id="another kind of attention"),
        pytest.param({**GEMMA, "layer_types": ["full_attention"]}, id="too few kinds"),
        pytest.param({**QWEN3_30B_A3B, "num_experts": None}, id="no number of experts"),
        pytest.param({**QWEN3_30B_A3B, "mlp_only_layers": 3}, id="a number for a list"),
    ],
)
def test_of_a_config_that_tells_too_little_nothing_is_claimed(config: dict[str, Any]) -> None:
    assert shape_of(config) is None
