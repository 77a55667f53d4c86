# SPDX-License-Identifier: Apache-2.0
"""Whether an engine starts without compiling its model: ready sooner, but slower in each step.

On an H200 with warm caches and a model of 8 billion parameters, vLLM needs 7 to 14 s longer to load compiled
code and to capture CUDA graphs than with ``enforce_eager``, and 40 s longer with cold caches
(`benchmarks/results/start_up.md`). A step without graphs launches each kernel from Python, which is slower
for few rows. So eager pays off for jobs with few steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Request

_MOST_STEPS = 256
"""At 10 to 15 ms more per step (an estimate), these cost 4 s, and at least 7 s are saved."""
_MOST_CHARACTERS = 1_000_000
"""Of a replica's prompts: some seconds of a GPU, of which compiled code saves a tenth. W1, with four times as
many, took 29.8 s eager, and 24 to 27 s compiled (`benchmarks/results/nights.md`)."""
_SETTLED_BY = frozenset({
    "compilation_config",
    "cudagraph_capture_sizes",
    "enforce_eager",
    "max_cudagraph_capture_size",
    "optimization_level",
    "performance_mode",
})
"""Engine arguments that say how the model is compiled."""


@dataclass(frozen=True)
class Workload:
    """An estimate for all rows from the first ones.

    :param longest_response: output tokens; ``None`` if a response may fill the context.
    :param characters: of a prompt, in the mean.
    :param completions: of a row, at most.
    """

    longest_response: int | None = None
    characters: float = 0.0
    completions: int = 1


def workload_of(spec: BatchInferenceSpec, requests: Sequence[Request]) -> Workload:
    """The workload, from the requests of the first rows."""
    asked = [{**spec.sampling, **request.sampling} for request in requests]
    limits = _whole_numbers(asked, "max_tokens")
    return Workload(
        max(limits, default=0) if len(limits) == len(asked) else None,
        sum(request.characters for request in requests) / max(1, len(requests)),
        max(_whole_numbers(asked, "n"), default=1),
    )


def _whole_numbers(asked: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """The whole numbers among a sampling parameter's values; a row with another value fails later, alone."""
    return [one[name] for one in asked if isinstance(one.get(name), int)]


def why_eager(spec: BatchInferenceSpec, rows: int, sequences: int, workload: Workload) -> str:
    """The reason to start an engine without compiling; empty if there is none.

    :param rows: of one replica.
    :param sequences: that run at once.
    """
    if (
        spec.engine != "vllm"
        or spec.keep_warm is not None  # other jobs may have more rows
        or not _SETTLED_BY.isdisjoint(spec.engine_args)
        or workload.longest_response is None
        or rows * workload.characters > _MOST_CHARACTERS
    ):
        return ""
    decoded = math.ceil(rows * workload.completions / sequences) * workload.longest_response
    return f"at most {decoded} steps, too few to be worth compiling" if decoded <= _MOST_STEPS else ""
