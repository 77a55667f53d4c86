# SPDX-License-Identifier: Apache-2.0
"""Log probabilities that the dataset keeps: which a job asks for, and how many alternatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.base import shown

COLUMNS = {
    "prompt_logprobs": ("prompt_logprobs", "prompt_mean_logprob"),
    "logprobs": ("logprobs", "mean_logprob"),
}
"""What the dataset has for each of these sampling parameters, in the order of the dataset."""
_MOST = 20
"""VLLM's `max_logprobs` where engine_args set none."""


def are_asked(sampling: Mapping[str, Any], name: str) -> bool:
    """Whether sampling parameters ask for log probabilities; 0 asks for those of the chosen tokens."""
    value = sampling.get(name)
    return value is not None and value is not False


def kept_logprobs(sampling: Mapping[str, Any], rows_may_ask: bool) -> list[str]:
    """Those of :data:`COLUMNS` that a dataset has.

    :param sampling: of the job.
    :param rows_may_ask: whether a row may ask for `logprobs` where the job does not.
    """
    return [name for name in COLUMNS if are_asked(sampling, name) or (rows_may_ask and name == "logprobs")]


def check_logprobs(sampling: Mapping[str, Any], engine_args: Mapping[str, Any]) -> None:
    """Check how many alternatives a job asks for.

    :raises ValueError: a number is not one that vLLM takes; one sentence, without the argument's name.
    """
    most = engine_args.get("max_logprobs", _MOST)
    limit = most if isinstance(most, int) and most >= 0 else None
    for name in COLUMNS:
        if not are_asked(sampling, name):
            continue
        value: Any = sampling[name]
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not whole or (limit is not None and value > limit):
            to = "" if limit is None else f" to {limit}"
            raise ValueError(
                f"{name}: it must be a whole number from 0{to}, of the likeliest tokens beside each token, "
                f"but it is {shown(value)}; engine_args={{'max_logprobs': ...}} allows more"
            )


def check_of_row(sampling: Mapping[str, Any], of_job: Mapping[str, Any]) -> None:
    """Check a row's own sampling parameters.

    :raises ValueError: the row asks for log probabilities that the dataset has no column for.
    """
    for name in COLUMNS:
        if are_asked(sampling, name) and not are_asked(of_job, name):
            raise ValueError(
                f"{name}: the dataset has a column for it only where the job asks for it; set it in "
                "sampling, too"
            )
