# SPDX-License-Identifier: Apache-2.0
"""The share of a GPU that an engine takes: which values there are, and what it leaves as it was."""

from __future__ import annotations

import pytest

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


@pytest.mark.parametrize("share", [0.5, 0.0001, 0.3333, 0.9999, "0.25"])
def test_a_share_is_a_part_of_one_gpu(share: float | str) -> None:
    made = spec(num_gpus=share)
    assert (made.num_gpus, made.shares_gpu) == (float(share), True)


@pytest.mark.parametrize("whole", [None, 1, 1.0])
def test_a_whole_gpu_is_not_shared(whole: float | None) -> None:
    assert not spec(num_gpus=whole).shares_gpu


def test_a_wrong_share_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(**{"engine": "vllm", **fields}))


def test_less_memory_than_the_share_is_taken() -> None:
    args = {"gpu_memory_utilization": 0.5}
    assert spec(engine="vllm", num_gpus=0.5, engine_args=args).engine_args == args
