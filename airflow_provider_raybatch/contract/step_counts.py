# SPDX-License-Identifier: Apache-2.0
"""What became of each step of a job that asks several questions about each row."""

from __future__ import annotations

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel


class StepCounts(ContractModel):
    """Rows and tokens of one of `steps`. `asked` = `ok` + `rejected` + `errors`.

    Rows that failed in an earlier step are in none of the counts.

    :param asked: rows that the step asked about, whoever paid for the responses.
    :param skipped: rows whose conditions (`when`) did not hold, or with only blank text (`on_blank`
        ``null``); their columns of the step are null.
    :param ok: asked rows with a response as asked for.
    :param rejected: asked rows that continued with another response (`on_rejected`).
    :param errors: asked rows that failed here.
    :param input_tokens: of all asked rows with known responses; `cached_tokens` of them from the prefix
        cache.
    :param output_tokens: generated tokens of the same rows.
    :param resumed: responses of `ok` and `rejected` that an earlier submission generated.
    :param reused: responses of `ok` and `rejected` from the response store.
    :param duplicates: rows of `ok` and `rejected` with the response of an equal request.
    :param tokens_saved: input and output tokens that the run did not pay for, as in the manifest.
    """

    name: str
    asked: int = Field(default=0, ge=0)
    skipped: int = Field(default=0, ge=0)
    ok: int = Field(default=0, ge=0)
    rejected: int = Field(default=0, ge=0)
    errors: int = Field(default=0, ge=0)
    input_tokens: int = Field(default=0, ge=0)
    cached_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    resumed: int = Field(default=0, ge=0)
    reused: int = Field(default=0, ge=0)
    duplicates: int = Field(default=0, ge=0)
    tokens_saved: int = Field(default=0, ge=0)
