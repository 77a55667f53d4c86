# SPDX-License-Identifier: Apache-2.0
"""The context length of engines: the model's own where it fits, else the longest that surely fits."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning.context_length import (
    MEASURED,
    AskedContext,
    ContextLength,
    context_length,
    context_on_cpus,
)
from airflow_provider_raybatch.job.planning.gpus import known_gpus
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes, fit_of
from airflow_provider_raybatch.job.planning.model_shape import shape_of
from tests.support.model_configs import SHAPES

OWN, LONG = 131_072, 24_000


def model(name: str = "8B") -> ModelSizes:
    shape = shape_of(SHAPES[name])
    assert shape is not None
    return ModelSizes(shape, counts_graphs=True)


def length(
    *gpus: str,
    needed: int = 2000,
    decides: bool = False,
    of: ModelSizes | None = None,
    own: int = OWN,
    node: int = 1,
    **engine_args: Any,
) -> ContextLength:
    asked = AskedContext(own, needed, decides)
    return context_length(of or model(), engine_args, asked, known_gpus(gpus), node)


@pytest.mark.parametrize("gpu", ["A100-80G", "H100", "H200"])
def test_own_context_stays_where_it_fits(gpu: str) -> None:
    found = length(gpu)
    assert (found.tokens, found.max_model_len, found.problem) == (OWN, None, "")
    assert found.reason == "the model's own, which fits; a smaller one would free no memory"


def test_the_longest_that_surely_fits_is_taken() -> None:
    found = length("L4")
    assert found == ContextLength(
        20_480,
        "surely fits: the model's own 131,072 tokens take 16.0 GiB of KV cache, and L4 holds about 24,700 "
        "tokens",
        20_480,
    )
    (gpu,) = known_gpus(["L4"])
    assert fit_of(model(), {"max_model_len": found.max_model_len}, gpu).fits
    assert found.shown() == {"max_model_len": {"value": 20_480, "reason": found.reason}}


@pytest.mark.parametrize("needed", [0, 100, 5000, 20_480])
def test_rows_do_not_change_the_choice(needed: int) -> None:
    """So that jobs with other rows find each other's warm engines."""
    assert length("L4", needed=needed) == length("L4")


def test_rows_that_need_more_than_surely_fits_let_vllm_measure() -> None:
    found = length("L4", needed=LONG)
    assert (found.max_model_len, found.tokens, found.problem) == (MEASURED, 24_688, "")
    assert "dead letter" not in found.reason


def test_a_counted_row_that_hardly_fits_is_told_what_would_help() -> None:
    found = length("L4", needed=30_000, node=8)
    assert (found.max_model_len, found.problem) == (MEASURED, "")
    assert found.reason == (
        "what vLLM's cache holds: L4 holds about 24,700 tokens, and the model's own 131,072 tokens may not "
        "fit; the longest prompt counted, 30,000 tokens with its response, may be a dead letter unless you "
        "set quantization='fp8' in engine_args, or set max_model_len in engine_args to at most 23,500, which "
        "longer rows exceed, or choose a smaller model or larger GPUs"
    )


def test_a_counted_row_that_no_gpu_holds_is_refused() -> None:
    assert length("L4", needed=100_000).problem == (
        "max_model_len: the longest prompt counted, 100,000 tokens with its response, takes 12.2 GiB of KV "
        "cache, and at most 7.1 GiB are left for it (gpu_memory_utilization 0.92 of L4, at most 24.0 GiB, "
        "less 15.0 GiB of weights); set pipeline_parallel_size=2 in engine_args, or take it in 4 bits (AWQ "
        "or GPTQ), or set max_model_len in engine_args to at most 23,500, which longer rows exceed, or "
        "choose a smaller model or larger GPUs."
    )
    wide = length("A100-40G", needed=100_000, of=model("32B"), own=OWN, node=8, tensor_parallel_size=2)
    assert "takes on each of a replica's 2 GPUs 12.2 GiB of KV cache" in wide.problem
    assert "set tensor_parallel_size=4 in engine_args" in wide.problem


def test_a_context_that_decides_responses_is_not_derived() -> None:
    """Request keys say nothing of a derived one, and another cluster would answer otherwise."""
    found = length("L4", decides=True)
    assert (found.tokens, found.max_model_len) == (OWN, None)
    assert found.problem.startswith(
        "max_model_len: the model's own context of 131,072 tokens takes 16.0 GiB of KV cache, and at most"
    )
    assert "set max_model_len in engine_args to at most 23,500" in found.problem
    assert length("H200", decides=True).problem == ""


def test_a_gpu_of_several_products_is_measured() -> None:
    """80 GB do not hold the context of this model beside its weights, and the 94 of an H100 NVL do."""
    found = length("H100", of=model("32B"), own=40_960)
    assert (found.max_model_len, found.problem) == (MEASURED, "")
    assert found.reason == (
        "what vLLM's cache holds: H100 holds about 29,600 tokens, and the model's own 40,960 tokens may not "
        "fit"
    )
    assert length("A100", of=model("32B"), own=40_960).reason.startswith(
        "what vLLM's cache holds: the smallest A100 does not hold the weights"
    )


def test_a_quantised_checkpoint_may_have_a_smaller_cache() -> None:
    """Its config may ask for one in FP8, so that the model's own context may fit after all."""
    shape = shape_of({**SHAPES["8B"], "quantization_config": {"quant_method": "fp8"}})
    assert shape is not None
    quantised = ModelSizes(shape, counts_graphs=True)
    assert length("L4", of=quantised, own=OWN).max_model_len == MEASURED
    assert (length("L4", of=quantised, own=OWN, kv_cache_dtype="bfloat16").max_model_len or 0) > 1024


def test_each_of_several_gpus_takes_what_it_holds() -> None:
    assert length("L4", "H200").max_model_len == MEASURED
    assert length("A100-80G", "H200").max_model_len is None


@pytest.mark.parametrize(
    ("gpus", "fields", "unknown"),
    [
        ((), {}, "the GPU"),
        (("M60",), {}, "the GPU"),
        (("L4",), {"cpu_offload_gb": 9}, "an engine argument"),
    ],
)
def test_own_context_stays_where_nothing_is_known(
    gpus: tuple[str, ...], fields: dict[str, Any], unknown: str
) -> None:
    found = length(*gpus, **fields)
    reason = f"the model's own; whether it fits can't be told from {unknown}"
    assert found == ContextLength(OWN, reason)


def test_a_config_without_sizes_leaves_the_own_context() -> None:
    found = context_length(None, {}, AskedContext(OWN, 5, False), known_gpus(["L4"]))
    assert found == ContextLength(
        OWN, "the model's own; whether it fits can't be told from the model's sizes"
    )
    assert context_on_cpus(None, {}, AskedContext(OWN, 5, False)) == ContextLength(OWN, "the model's own")


@pytest.mark.parametrize("given", [4096, -1, "auto"])
def test_what_the_user_sets_stays(given: int | str) -> None:
    found = length("L4", max_model_len=given, own=4096)
    assert found == ContextLength(4096, "set in engine_args")
    asked = AskedContext(4096, 5, False)
    assert context_on_cpus(model(), {"max_model_len": given}, asked) == found


@pytest.mark.parametrize(
    ("own", "decides", "cache", "chosen"),
    [
        (OWN, False, {}, MEASURED),
        (OWN, True, {}, None),
        (4096, False, {}, None),
        (4096, False, {"kv_cache_memory_bytes": 1 << 29}, MEASURED),
        (OWN, False, {"kv_cache_memory_bytes": 1 << 35}, None),
    ],
)
def test_large_rows_on_cpus_are_measured(
    own: int, decides: bool, cache: dict[str, int], chosen: int | None
) -> None:
    """The cache is a fifth of the memory that is free on the engine's node, which the driver can't see."""
    assert context_on_cpus(model(), cache, AskedContext(own, 5, decides)).max_model_len == chosen
