# SPDX-License-Identifier: Apache-2.0
"""Which models fit into a share of a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning.gpu_share import share_refusal, smallest_share, with_utilization
from airflow_provider_raybatch.job.planning.gpus import Gpu, gpu_named, known_gpus
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes, fit_of
from airflow_provider_raybatch.job.planning.model_shape import shape_of
from tests.support.model_configs import SHAPES


def model(name: str) -> ModelSizes:
    shape = shape_of(SHAPES[name])
    assert shape is not None
    return ModelSizes(shape)


def gpu(name: str) -> Gpu:
    found = gpu_named(name)
    assert found is not None
    return found


def refused(name: str, share: float, *types: str, tokens: int = 0, **args: Any) -> str | None:
    return share_refusal(model(name), f"acme/{name}", args, share, known_gpus(types), tokens)


def test_weights_that_a_share_does_not_hold_are_refused() -> None:
    assert refused("8B", 0.5, "L4") == (
        "num_gpus: 0.5 of L4 gives an engine at most 10.4 GiB (gpu_memory_utilization 0.435), and the "
        "weights of 'acme/8B' take 15.0 GiB and a KV cache of 1,024 tokens 0.1 GiB; set num_gpus to at least "
        "0.85, or choose a smaller model or larger GPUs."
    )


def test_a_row_that_a_share_does_not_hold_is_refused() -> None:
    assert refused("8B", 0.15, "H200") is None
    said = refused("8B", 0.15, "H200", tokens=60_000) or ""
    assert "and a KV cache of 60,000 tokens 7.3 GiB; set num_gpus to at least 0.2, or" in said
    assert refused("8B", 0.15, "H200", max_model_len=60_000) == said


def test_a_model_that_no_share_holds_needs_a_gpu() -> None:
    assert "; leave num_gpus out, or choose a smaller model" in (refused("32B", 0.5, "L4") or "")


def test_memory_that_the_user_set_too_low_is_to_go() -> None:
    said = refused("8B", 0.5, "H200", gpu_memory_utilization=0.05) or ""
    assert "(gpu_memory_utilization 0.05)" in said
    assert "set num_gpus to at least 0.15 without gpu_memory_utilization" in said


@pytest.mark.parametrize(
    ("types", "args"),
    [
        ((), {}),
        (("M60",), {}),
        (("L4", "H200"), {}),
        (("L4",), {"cpu_offload_gb": 9}),
        (("L4",), {"kv_cache_memory_bytes": 2**30}),
    ],
)
def test_what_may_work_is_not_refused(types: tuple[str, ...], args: dict[str, Any]) -> None:
    assert refused("8B", 0.5, *types, **args) is None


@pytest.mark.parametrize(("name", "accelerator_type"), [("8B", "L4"), ("8B", "H200"), ("0.5B", "T4")])
def test_the_smallest_share_fits_and_a_smaller_one_does_not(name: str, accelerator_type: str) -> None:
    found = smallest_share(model(name), {}, gpu(accelerator_type), 1024)
    assert found is not None
    for share, fits in ((found, True), (found - 0.05, False)):
        args = {**with_utilization({}, share, gpu(accelerator_type)), "max_model_len": 1024}
        assert fit_of(model(name), args, gpu(accelerator_type), 8, share).fits is fits


def test_the_plan_tells_what_fits_beside() -> None:
    args = {**with_utilization({}, 0.25, gpu("H200")), "max_model_len": 8192}
    found = fit_of(model("0.5B"), args, gpu("H200"), 8, 0.25)
    assert found.fits
    assert found.reasons["replicas"] == "32 replicas of 0.25 GPU a node of 8 GPUs"
    assert found.reasons["fractional_gpus"] == (
        "4 engines of 0.25 GPU each on one; gpu_memory_utilization is 0.225"
    )
    assert "parallel" not in found.reasons
