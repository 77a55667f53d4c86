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
from airflow_provider_raybatch.job.planning.engine_memory import known_gpus
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes, fit_of
from tests.support.approved import AssertSentences
from tests.support.model_configs import SHAPES, gpu, sizes

OWN = 131_072
MODEL, LARGER = (sizes(name, counts_graphs=True) for name in ("8B", "32B"))
IN_FP8 = sizes({**SHAPES["8B"], "quantization_config": {"quant_method": "fp8"}}, counts_graphs=True)


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
    return context_length(of or MODEL, engine_args, asked, known_gpus(gpus), node)


def test_the_choice_and_its_reason(assert_sentences: AssertSentences) -> None:
    """What decides responses is not derived: keys don't have it, and another cluster would answer otherwise.

    Where the 40 or 80 GB of one name differ, or a checkpoint in FP8 may have a smaller cache, vLLM measures.
    """

    def said(*gpus: str, **fields: Any) -> str:
        found = length(*gpus, **fields)
        chosen = {MEASURED: "measured", None: "own"}.get(found.max_model_len, "derived")
        why = f"refused: {found.problem}" if found.problem else found.reason
        return f"{chosen}, {found.tokens:,} tokens: {why}"

    assert_sentences(said)


def test_the_longest_that_surely_fits_is_taken() -> None:
    found = length("L4")
    assert (found.max_model_len, found.tokens) == (20_480, 20_480)
    assert fit_of(MODEL, {"max_model_len": found.max_model_len}, gpu("L4")).fits
    assert found.shown() == {"max_model_len": {"value": 20_480, "reason": found.reason}}


@pytest.mark.parametrize("needed", [0, 100, 5000, 20_480])
def test_rows_do_not_change_the_choice(needed: int) -> None:
    """So that jobs with other rows find each other's warm engines."""
    assert length("L4", needed=needed) == length("L4")


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
    assert context_on_cpus(MODEL, {"max_model_len": given}, asked) == found


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
    assert context_on_cpus(MODEL, cache, AskedContext(own, 5, decides)).max_model_len == chosen
