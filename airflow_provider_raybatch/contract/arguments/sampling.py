# SPDX-License-Identifier: Apache-2.0
"""How the model answers, and what a good response is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown

NOT_KEPT = frozenset({
    "logprobs", "prompt_logprobs", "flat_logprobs", "logprob_token_ids", "prompt_logprob_token_ids",
})  # fmt: skip
"""Sampling parameters whose results no column of the dataset holds."""


class SamplingArguments(ContractModel):
    """How the model answers, and what a good response is.

    :param sampling: vLLM sampling parameters under vLLM's names; merged over the model's `generation_config`.
    :param sampling_column: a column (struct or JSON object) with sampling parameters that override `sampling`
        per row.
    :param response_format: ``json_object`` if the text must parse as JSON; a JSON schema in `sampling`
        implies it.
    :param on_truncated: whether a response that `max_tokens` or the context cut off is good (``keep``) or a
        failure of its row (``error``).
    """

    sampling: dict[str, Any] = Field(default_factory=dict)
    sampling_column: str | None = None
    response_format: Literal["text", "json_object"] = "text"
    on_truncated: Literal["keep", "error"] = "keep"

    @field_validator("sampling")
    @classmethod
    def _known_sampling(cls, value: dict[str, Any]) -> dict[str, Any]:
        n = value.get("n", 1)
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(
                f"n: the number of completions must be a whole number of at least 1, but it is {n!r}"
            )
        check_sampling(value)
        return value

    @property
    def needs_json(self) -> bool:
        """Whether a good response must parse as JSON."""
        structured = self.sampling.get("structured_outputs") or {}
        asked = isinstance(structured, dict) and (structured.get("json") or structured.get("json_object"))
        return bool(self.response_format == "json_object" or asked)


def check_sampling(values: Mapping[str, Any]) -> None:
    """Refuse sampling parameters that no engine can honour, of a job or of a row.

    :raises ValueError: the dataset has no column for a result, or a value is not a finite number.
    """
    for name, value in values.items():
        if name in NOT_KEPT and value is not None and value is not False:
            raise ValueError(f"{name}: the dataset has no column for log probabilities; remove it")
        if not _is_finite(value):
            raise ValueError(f"{name}: {shown(value)} is not finite; give a finite number")


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)
