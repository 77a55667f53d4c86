# SPDX-License-Identifier: Apache-2.0
"""Whether a model fits a GPU, what else would fit, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning.engine_memory import GIB, gpu_named, known_gpus
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes, fit_of, refusal, tokens_in_words
from tests.support.approved import AssertSentences
from tests.support.model_configs import DEEPSEEK_V3, QWEN3_30B_A3B, SHAPES, gpu
from tests.support.model_configs import sizes as model

ROWS = {"max_model_len": 8192}
PIPELINE, TENSOR = "pipeline_parallel_size", "tensor_parallel_size"


@pytest.mark.parametrize(
    ("name", "accelerator_type", "fits", "parallel"),
    [
        ("8B", "T4", False, {PIPELINE: 2}),
        ("8B", "L4", True, {}),
        ("8B", "A100-40G", True, {}),
        ("8B", "A100-80G", True, {}),
        ("8B", "H100", True, {}),
        ("8B", "H200", True, {}),
        ("32B", "L4", False, {PIPELINE: 4}),
        ("32B", "A100-40G", False, {TENSOR: 2}),
        ("32B", "A100-80G", True, {}),
        ("32B", "H100", True, {}),
        ("32B", "H200", True, {}),
        ("70B", "L4", False, {PIPELINE: 9}),
        ("70B", "A100-40G", False, {TENSOR: 4}),
        ("70B", "A100-80G", False, {TENSOR: 2}),
        ("70B", "H100", False, {TENSOR: 2}),
        ("70B", "H200", False, {TENSOR: 2}),
    ],
)
def test_the_fewest_gpus_that_hold_a_model(
    name: str, accelerator_type: str, fits: bool, parallel: dict[str, int]
) -> None:
    found = fit_of(model(name), ROWS, gpu(accelerator_type), 8)
    assert (found.fits, found.parallel) == (fits, parallel)
    assert fit_of(model(name), {**ROWS, **parallel}, gpu(accelerator_type), 8).fits


@pytest.mark.parametrize(
    ("gpus_of_a_node", "parallel"), [(8, {TENSOR: 8, PIPELINE: 2}), (1, {PIPELINE: 11}), (0, {PIPELINE: 11})]
)
def test_a_model_larger_than_a_node_gets_stages(gpus_of_a_node: int, parallel: dict[str, int]) -> None:
    found = fit_of(model(DEEPSEEK_V3), {"max_model_len": 1024}, gpu("H100"), gpus_of_a_node)
    assert (found.fits, found.parallel) == (False, parallel)


def test_stages_only_where_the_heads_can_not_be_shared() -> None:
    """14 heads can be shared by two GPUs, not by four."""
    odd = {**SHAPES["0.5B"], "num_hidden_layers": 24 * 200}
    assert fit_of(model(odd), ROWS, gpu("H100"), 8).parallel[TENSOR] == 2


def test_each_choice_has_its_reason(assert_sentences: AssertSentences) -> None:
    def reason(name: str, accelerator_type: str, engine_args: dict[str, Any], choice: str) -> str:
        return fit_of(model(name), engine_args, gpu(accelerator_type), 8).reasons[choice]

    assert_sentences(reason)


@pytest.mark.parametrize(
    ("name", "accelerator_type", "engine_args", "choice"),
    [
        ("8B", "H100", ROWS, "parallel"),
        ("8B", "H200", ROWS, "quantization"),  # already much room
        ("8B", "L4", {**ROWS, "quantization": "fp8"}, "quantization"),
        ("8B", "A100", ROWS, "kv_cache_dtype"),
        ("8B", "H200", {**ROWS, "kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ("70B", "H100", ROWS, "replicas"),
        ("8B", "L4", ROWS, "fractional_gpus"),
        ("0.5B", "H200", {**ROWS, TENSOR: 2}, "fractional_gpus"),
    ],
)
def test_nothing_is_said_where_there_is_no_choice(
    name: str, accelerator_type: str, engine_args: dict[str, Any], choice: str
) -> None:
    assert choice not in fit_of(model(name), engine_args, gpu(accelerator_type), 8).reasons


@pytest.mark.parametrize(
    ("known", "accelerator_type", "engine_args", "of"),
    [
        (None, "H100", {}, "the model's sizes"),
        (model("8B"), "M60", {}, "the GPU"),
        (model("8B"), None, {}, "the GPU"),
        (model("8B"), "H100", {"cpu_offload_gb": 9}, "an engine argument"),
    ],
)
def test_what_is_unknown_is_called_so(
    known: ModelSizes | None, accelerator_type: str | None, engine_args: dict[str, Any], of: str
) -> None:
    found = fit_of(known, engine_args, gpu_named(accelerator_type))
    assert (found.fits, found.memory, found.parallel) == (None, None, {})
    assert found.reasons == {"model": f"unknown: nothing can be derived from {of}"}


AWQ = {**SHAPES["70B"], "quantization_config": {"quant_method": "awq", "bits": 4}}


@pytest.mark.parametrize(
    ("known", "engine_args", "types", "refused"),
    [
        (model("70B"), ROWS, {"H100"}, True),
        (model("70B"), {**ROWS, TENSOR: 2}, {"H100"}, False),
        (model("70B"), {**ROWS, TENSOR: 2}, {"L4"}, True),
        (model("70B"), {**ROWS, "quantization": "fp8"}, {"H100"}, False),
        (model("70B"), ROWS, {"L4", "H100"}, True),
        # The one with room may get it.
        (model("32B"), ROWS, {"L4", "H100"}, False),
        # Of 40 or 80 GB.
        (model("32B"), ROWS, {"A100"}, False),
        (model("32B"), ROWS, {"A100-40G"}, True),
        (model("70B"), ROWS, {"H200"}, True),
        # Too little for the weights and a step, which only vLLM can be sure of.
        (model("70B"), {**ROWS, "gpu_memory_utilization": 0.94}, {"H200"}, False),
        (model("8B"), ROWS, {"T4"}, True),
        (model("8B"), {**ROWS, "kv_cache_memory_bytes": GIB}, {"T4"}, False),
        (model("70B"), ROWS, {"M60"}, False),
        (model("70B"), ROWS, {"M60", "L4"}, False),
        (model("70B"), ROWS, set(), False),
        (model("70B"), {**ROWS, "cpu_offload_gb": 100}, {"L4"}, False),
        (model(AWQ), ROWS, {"A100-40G"}, False),
        (model(AWQ), ROWS, {"L4"}, True),
        (model(AWQ, stored=23 * GIB), ROWS, {"L4"}, False),
        (model(QWEN3_30B_A3B), ROWS, {"A100-40G"}, True),
    ],
)
def test_only_what_can_not_work_is_refused(
    known: ModelSizes, engine_args: dict[str, Any], types: set[str], refused: bool
) -> None:
    assert (refusal(known, "acme/large", engine_args, known_gpus(types), 8) is not None) is refused


def test_a_refusal_has_the_sum_and_what_would_fit() -> None:
    assert refusal(model("70B"), "acme/large", ROWS, [gpu("H100")], 8) == (
        "model: the weights of 'acme/large' take 131.4 GiB on one GPU, and vLLM has at most 86.5 GiB there "
        "(gpu_memory_utilization 0.92 of H100, at most 94.0 GiB); set tensor_parallel_size=2 in engine_args, "
        "or set quantization='fp8' in engine_args, or choose a smaller model or larger GPUs."
    )
    two_each = refusal(model("70B"), "acme/large", {**ROWS, TENSOR: 2}, [gpu("A10G")], 4)
    assert two_each is not None
    assert "take 65.7 GiB on each of a replica's 2 GPUs" in two_each
    assert "; set pipeline_parallel_size=8 in engine_args, or take it in 4 bits (AWQ or GPTQ), or" in two_each


@pytest.mark.parametrize(
    ("tokens", "text"),
    [(891_824, "892,000 tokens"), (24_690, "24,700 tokens"), (512, "512 tokens"), (1, "1 token")],
)
def test_tokens_in_words(tokens: int, text: str) -> None:
    assert tokens_in_words(tokens) == text
