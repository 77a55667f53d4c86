# SPDX-License-Identifier: Apache-2.0
"""The share of a GPU that an engine takes: which values there are, and what it leaves as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.specs import spec, spec_error


@pytest.mark.parametrize("share", [0.5, 0.0001, 0.3333, 0.9999, "0.25"])
def test_a_share_is_a_part_of_one_gpu(share: float | str) -> None:
    made = spec(num_gpus=share)
    assert (made.num_gpus, made.shares_gpu) == (float(share), True)


@pytest.mark.parametrize("whole", [None, 1, 1.0])
def test_a_whole_gpu_is_not_shared(whole: float | None) -> None:
    assert not spec(num_gpus=whole).shares_gpu


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"num_gpus": 2},
            "num_gpus: it is the share of one GPU that an engine takes, at most 1, but it is 2; leave it "
            "out, and set tensor_parallel_size in engine_args to the GPUs of one engine.",
        ),
        ({"num_gpus": 0}, "num_gpus: it must be more than 0, but it is 0."),
        ({"num_gpus": True}, "num_gpus: it must be a number, but it is True."),
        ({"num_gpus": "half"}, "num_gpus: it must be a number, but it is 'half'."),
        ({"num_gpus": [0.5]}, "num_gpus: it must be a number, but it is [0.5]."),
        ({"num_gpus": float("nan")}, "num_gpus: it must be a finite number, but it is nan."),
        (
            {"num_gpus": 0.33333},
            "num_gpus: Ray counts GPUs in ten-thousandths, but it is 0.33333; round it to four decimal "
            "places.",
        ),
        (
            {"num_gpus": 0.00001},
            "num_gpus: Ray counts GPUs in ten-thousandths, but it is 1e-05; round it to four decimal places.",
        ),
        (
            {"num_gpus": 0.5, "engine_args": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}},
            "num_gpus: 0.5 is for engines on one GPU, and the parallel sizes in engine_args make it 4; "
            "remove one of the two.",
        ),
        (
            {"num_gpus": 0.5, "engine_args": {"distributed_executor_backend": "ray"}},
            "num_gpus: 0.5 is a share of a GPU, and distributed_executor_backend 'ray' takes whole ones; "
            "remove it from engine_args.",
        ),
        (
            {"num_gpus": 0.5, "engine_args": {"gpu_memory_utilization": 0.9}},
            "engine_args: gpu_memory_utilization 0.9 is more than the share num_gpus=0.5, so engines would "
            "not fit beside each other on it; leave it out, or raise num_gpus.",
        ),
        (
            {"num_gpus": 0.5, "engine": "ray_data_llm"},
            "num_gpus: 0.5 is not for engine 'ray_data_llm', whose stages reserve GPUs themselves; use "
            "engine 'vllm', or leave num_gpus out.",
        ),
    ],
)
def test_a_wrong_share_is_refused(fields: dict[str, Any], sentence: str) -> None:
    assert spec_error(**{"engine": "vllm", **fields}) == sentence


def test_less_memory_than_the_share_is_taken() -> None:
    args = {"gpu_memory_utilization": 0.5}
    assert spec(engine="vllm", num_gpus=0.5, engine_args=args).engine_args == args
