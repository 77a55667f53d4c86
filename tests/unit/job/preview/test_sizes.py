# SPDX-License-Identifier: Apache-2.0
"""The distribution of prompt lengths."""

from __future__ import annotations

from airflow_provider_raybatch.contract.preview import CutOff
from airflow_provider_raybatch.job.preview.counters import PromptLength
from airflow_provider_raybatch.job.preview.sizes import prompt_tokens
from airflow_provider_raybatch.job.row import RowFailure

FAILED = RowFailure("template", "no")


def of(*lengths: int, max_tokens: int = 16) -> list[PromptLength]:
    return [PromptLength(one, one, max_tokens) for one in lengths]


def test_quantiles_are_lengths_of_rows() -> None:
    found = prompt_tokens(of(*range(1, 101)), 4096, is_sample=False)
    assert (found.p50, found.p95, found.p99, found.longest) == (50, 95, 99, 100)
    assert (found.rows, found.failed, found.total, found.max_tokens) == (100, 0, 5050, 16)
    one = prompt_tokens(of(7), 4096, is_sample=True)
    assert (one.p50, one.p99, one.longest, one.is_sample) == (7, 7, 7, True)
    assert prompt_tokens([], 4096, is_sample=False).cut_offs == ()


def test_rows_that_fail_count_nowhere_but_in_the_longest() -> None:
    lengths = [*of(10), PromptLength(9000, -1, 16, FAILED), PromptLength(failure=FAILED)]
    found = prompt_tokens(lengths, 4096, is_sample=False)
    assert (found.failed, found.total, found.p99, found.longest) == (2, 10, 10, 9000)


def test_cut_prompts_count_as_they_are_sent() -> None:
    found = prompt_tokens([PromptLength(9000, 3000, 16)], 4096, is_sample=False)
    assert (found.total, found.longest, found.failed) == (3000, 9000, 0)


def test_smaller_contexts_cut_rows_off() -> None:
    """A prompt as long as the context leaves no room for a response."""
    found = prompt_tokens(of(20, 120, 128, 500), 8192, is_sample=False)
    assert found.cut_offs == (
        CutOff(max_model_len=128, failed=2, shortened=1),
        CutOff(max_model_len=256, failed=1, shortened=0),
        CutOff(max_model_len=512, failed=0, shortened=1),
        CutOff(max_model_len=1024, failed=0, shortened=0),
    )


def test_a_response_without_a_limit_takes_what_room_is_left() -> None:
    found = prompt_tokens([*of(100), *of(100, max_tokens=-1)], 256, is_sample=False)
    assert found.max_tokens is None
    assert found.cut_offs == (CutOff(max_model_len=128, failed=0, shortened=0),)
