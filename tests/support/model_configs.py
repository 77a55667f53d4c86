# SPDX-License-Identifier: Apache-2.0
"""Configs of models, as their ``config.json`` has them."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.job.planning.engine_memory import Gpu, gpu_named
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes
from airflow_provider_raybatch.job.planning.model_shape import ModelShape, shape_of
from tests.support.programs import program

KV_CACHE = program("benchmarks/throughput/kv_cache.py", "kv_cache")
SHAPES: dict[str, dict[str, Any]] = KV_CACHE.SHAPES

QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129_280,
    "max_position_embeddings": 163_840,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
MIXTRAL_8X7B: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
    "sliding_window": None,
}


def gpu(name: str) -> Gpu:
    """Return what is known of a GPU."""
    found = gpu_named(name)
    assert found is not None
    return found


def shaped(config: str | dict[str, Any]) -> ModelShape:
    """Return the shape of a config, or of one of :data:`SHAPES`."""
    shape = shape_of(SHAPES[config] if isinstance(config, str) else config)
    assert shape is not None
    return shape


def sizes(config: str | dict[str, Any], stored: int | None = None, **fields: Any) -> ModelSizes:
    """Return the sizes of a model; see :func:`shaped`."""
    return ModelSizes(shaped(config), stored, **fields)
