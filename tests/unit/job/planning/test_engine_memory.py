# SPDX-License-Identifier: Apache-2.0
"""What vLLM makes of a GPU's memory, for GPUs by the names that Ray gives them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning import engine_memory
from airflow_provider_raybatch.job.planning.engine_memory import (
    GIB,
    EngineSizes,
    gpu_named,
    known_gpus,
    memory_of,
    sizes_of,
    weights_of_gpu,
)
from tests.support.model_configs import DEEPSEEK_V3, QWEN3_30B_A3B, SHAPES, gpu, shaped

NAMES = ("T4", "V100", "L4", "A10G", "L40S", "A100", "A100-40G", "A100-80G", "RTX-PRO-6000", "H20", "H100",
         "H200", "B200", "GB200", "B300", "GB300")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_known_gpu_is_named_as_ray_names_it(name: str) -> None:
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    assert name in vars(accelerators).values()
    gpu = gpu_named(name)
    assert gpu is not None
    assert GIB * 14 < gpu.memory <= gpu.largest


@pytest.mark.parametrize(
    ("name", "link", "large", "several"),
    [
        ("L4", "PCIe", False, False),
        ("A10G", "PCIe", False, False),
        ("A100", "NVLink", False, True),
        ("A100-80G", "NVLink", False, False),
        ("H100", "NVLink", True, True),
        ("H200", "NVLink", True, False),
    ],
)
def test_link_and_defaults_of_a_gpu(name: str, link: str, large: bool, several: bool) -> None:
    gpu = gpu_named(name)
    assert gpu is not None
    assert (gpu.link, gpu.takes_large_batches, gpu.is_several) == (link, large, several)


def test_gpus_of_a_cluster_come_by_memory() -> None:
    assert [gpu.name for gpu in known_gpus({"H200", "L4", "H100"})] == ["L4", "H100", "H200"]
    assert known_gpus(()) == ()


LONG, SHORT = {"max_model_len": 131_072}, {"max_model_len": 8192}


def sized(config: dict[str, Any], accelerator_type: str = "H200", **engine_args: Any) -> EngineSizes:
    sizes = sizes_of(engine_args, shaped(config), gpu(accelerator_type))
    assert sizes is not None
    return sizes


@pytest.mark.parametrize(
    ("model", "engine_args", "weights", "cache", "tokens"),
    [
        ("8B", {"max_model_len": 2048}, 15.0, 108.81, 891_392),
        ("8B", LONG, 15.0, 108.81, 891_392),
        ("32B", {"max_model_len": 4096}, 61.04, 61.47, 251_760),
        ("1B", SHORT, 2.32, 122.25, 4_005_888),
        ("8B", {**SHORT, "quantization": "fp8"}, 8.54, 115.27, 944_288),
        ("0.5B", {"max_model_len": 32_768}, 0.93, 124.05, 10_839_664),
        ("270M", SHORT, 0.53, 124.51, 7_241_355),
        ("3B", {**SHORT, "gpu_memory_utilization": 0.4}, 6.04, 48.54, 454_432),
        ("8B", {**SHORT, "kv_cache_dtype": "fp8"}, 15.04, 108.78, 1_782_288),
        ("8B", {**SHORT, "max_num_seqs": 256, "max_num_batched_tokens": 8192}, 15.0, 109.49, 896_912),
        ("8B", {**SHORT, "tensor_parallel_size": 2}, 7.54, 117.16, 1_919_536),
    ],
)
def test_tokens_are_those_that_vllm_reported(
    model: str, engine_args: dict[str, Any], weights: float, cache: float, tokens: int
) -> None:
    """Measured on H200s with vLLM 0.26 by `benchmarks/throughput/kv_cache.py`; the target was 5 %."""
    sizes = sized(SHAPES[model], **{"gpu_memory_utilization": 0.9, **engine_args})
    expected = memory_of(shaped(SHAPES[model]), sizes, gpu("H200").memory)
    assert expected.weights / GIB == pytest.approx(weights, abs=0.1)
    assert expected.cache / GIB == pytest.approx(cache, rel=0.01)
    assert expected.tokens == pytest.approx(tokens, rel=0.01)


@pytest.mark.parametrize(
    ("config", "engine_args", "kib"),
    [
        (SHAPES["8B"], {}, 128),
        (SHAPES["70B"], {}, 320),
        (SHAPES["8B"], {"kv_cache_dtype": "fp8_e5m2"}, 64),
        (SHAPES["8B"], {"dtype": "float32"}, 256),
        (SHAPES["8B"], {"tensor_parallel_size": 2}, 64),
        # Eight heads on sixteen GPUs: each has one.
        (SHAPES["8B"], {"tensor_parallel_size": 16}, 16),
        (SHAPES["8B"], {"pipeline_parallel_size": 2}, 64),
        (QWEN3_30B_A3B, {}, 96),
        # Latent attention: all GPUs have it whole.
        (DEEPSEEK_V3, {"tensor_parallel_size": 8}, 68.625),
    ],
)
def test_bytes_of_a_token(config: dict[str, Any], engine_args: dict[str, Any], kib: float) -> None:
    """In all layers of one GPU that keep every token."""
    shape, sizes = shaped(config), sized(config, **engine_args)
    layers = -(-shape.layers // sizes.pipeline_parallel)
    assert engine_memory._page(shape, sizes) * layers == kib * 1024 * engine_memory._BLOCK


@pytest.mark.parametrize(
    ("config", "engine_args", "stored", "gib"),
    [
        (SHAPES["8B"], {}, None, 14.96),
        (SHAPES["8B"], {"dtype": "float32"}, None, 29.92),
        # Files of 32 bits are loaded in 16.
        (SHAPES["8B"], {}, 30 * GIB, 14.96),
        (SHAPES["8B"], {"quantization": "bitsandbytes"}, None, 5.6),
        ({**SHAPES["8B"], "quantization_config": {"quant_method": "awq", "bits": 4}}, {}, None, 5.4),
        ({**SHAPES["8B"], "quantization_config": {"quant_method": "awq", "bits": 4}}, {}, 6 * GIB, 6.0),
        (SHAPES["70B"], {"tensor_parallel_size": 4}, None, 32.85),
        (SHAPES["70B"], {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, None, 32.9),
        ({"model_type": "gemma3", "text_config": SHAPES["8B"]}, {}, 16 * GIB, 16.0),
        (DEEPSEEK_V3, {"tensor_parallel_size": 8}, None, 78.3),
    ],
)
def test_weights_of_a_gpu(
    config: dict[str, Any], engine_args: dict[str, Any], stored: int | None, gib: float
) -> None:
    found = weights_of_gpu(shaped(config), sized(config, **engine_args), stored)
    assert found / GIB == pytest.approx(gib, rel=0.01)


@pytest.mark.parametrize(
    ("accelerator_type", "engine_args", "tokens", "sequences"),
    [
        ("H200", {}, 16_384, 1024),
        ("A100-80G", {}, 8192, 256),
        ("L4", {}, 8192, 256),
        ("L4", {"max_num_seqs": 4, "max_model_len": 1024}, 4096, 4),
        ("L4", {"max_num_batched_tokens": 2048}, 2048, 256),
        ("L4", {"max_num_batched_tokens": "many", "max_num_seqs": True}, 8192, 256),
    ],
)
def test_sizes_of_a_step(
    accelerator_type: str, engine_args: dict[str, Any], tokens: int, sequences: int
) -> None:
    sizes = sized(SHAPES["8B"], accelerator_type, **engine_args)
    assert (sizes.batched_tokens, sizes.sequences) == (tokens, sequences)


@pytest.mark.parametrize(
    "engine_args",
    [
        {"cpu_offload_gb": 4},
        {"kv_offloading_size": 4},
        {"data_parallel_size": 2},
        {"speculative_config": {"method": "ngram"}},
        {"num_gpu_blocks_override": 9},
        {"hf_overrides": {"num_hidden_layers": 1}},
        {"load_format": "gguf"},
        {"quantization": "of_tomorrow"},
        {"kv_cache_dtype": "nvfp4"},
        {"dtype": "float64"},
        {"max_model_len": -1},
        {"max_model_len": "auto"},
    ],
)
def test_an_argument_of_unknown_effect_ends_all_claims(engine_args: dict[str, Any]) -> None:
    assert sizes_of(engine_args, shaped("8B"), gpu("H200")) is None


def test_an_unknown_quantisation_ends_all_claims() -> None:
    config = {**SHAPES["8B"], "quantization_config": {"quant_method": "of_tomorrow"}}
    assert sizes_of({}, shaped(config), gpu("H200")) is None


def test_a_cache_of_fixed_size_has_it() -> None:
    sizes = sized(SHAPES["8B"], kv_cache_memory_bytes=GIB)
    assert memory_of(shaped(SHAPES["8B"]), sizes, gpu("H200").memory).tokens == 8192


def test_graphs_cost_tokens_where_vllm_counts_them() -> None:
    shape, sizes = shaped(SHAPES["8B"]), sized(SHAPES["8B"], "L4", **SHORT)
    without, with_graphs = (
        memory_of(shape, sizes, gpu("L4").memory, None, counts) for counts in (False, True)
    )
    assert 0.3 * GIB < without.cache - with_graphs.cache < 1.2 * GIB
    assert with_graphs.tokens < without.tokens


@pytest.mark.parametrize(
    ("further", "blocks"),
    [
        # Six groups of three layers, five of them with a window.
        ({"max_num_batched_tokens": 1024}, 512 + 5 * 161),
        ({"max_num_batched_tokens": 1024, "async_scheduling": False}, 512 + 5 * 97),
        # One group of eighteen layers.
        ({"disable_hybrid_kv_cache_manager": True}, 512),
    ],
)
def test_a_window_saves_blocks(further: dict[str, Any], blocks: int) -> None:
    config = SHAPES["270M"]
    found = memory_of(shaped(config), sized(config, **SHORT, **further), gpu("H200").memory)
    layers = 3 if blocks > 512 else 18
    assert found.sequences == (found.cache // (layers * 16_384)) / blocks
