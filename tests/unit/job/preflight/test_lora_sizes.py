# SPDX-License-Identifier: Apache-2.0
"""VLLM's sizes for adapters come from the adapters."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.adapter_check import lora_args

KNOWN = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def args(ranks: list[int], given: dict[str, Any] | None = None, **others: Any) -> dict[str, Any]:
    fields = {"largest": 2**20, "on_cpu": False, "vllm": "0.29.0+cpu", **others}
    return lora_args(ranks, given=given or {}, known_ranks=KNOWN, **fields)


@pytest.mark.parametrize(
    ("ranks", "others", "rank", "at_once", "kept"),
    [
        ([4], {}, 8, 1, 1),
        ([8, 17], {}, 32, 2, 2),
        ([16] * 40, {}, 16, 8, 40),
        ([16] * 40, {"largest": 2**30}, 16, 8, 8),  # not 40 GiB of main memory
        ([16] * 40, {"largest": 0}, 16, 8, 40),
        ([4, 4], {"on_cpu": True}, 8, 3, 3),  # the last slot stays empty
        ([4] * 20, {"on_cpu": True, "vllm": "0.32.1"}, 8, 21, 21),
        ([4, 4], {"on_cpu": True, "vllm": "0.33.0"}, 8, 2, 2),
    ],
)
def test_sizes_follow_the_adapters(
    ranks: list[int], others: dict[str, Any], rank: int, at_once: int, kept: int
) -> None:
    made = args(ranks, **others)
    sizes = {"max_lora_rank": rank, "max_loras": at_once, "max_cpu_loras": kept}
    assert made == {"enable_lora": True, **sizes}


def test_given_sizes_are_kept() -> None:
    given = {"max_lora_rank": 64, "max_loras": 16}
    assert args([4, 4], given) == {"enable_lora": True, "max_cpu_loras": 16}
    assert args([4, 4], {"max_loras": 7}, on_cpu=True)["max_cpu_loras"] == 7


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_lora_rank": 8}, "engine_args: max_lora_rank is 8, and an adapter has the rank 16"),
        ({"max_loras": 2}, "engine_args: max_loras is 2, and vLLM 0.29.0+cpu on CPUs needs one more"),
    ],
)
def test_a_size_that_gives_wrong_answers_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PreflightError) as refused:
        args([16, 4], given, on_cpu=True)
    assert str(refused.value).startswith(sentence)
