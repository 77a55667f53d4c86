# SPDX-License-Identifier: Apache-2.0
"""Columns of one value each: tokens that were cut off, why a response is rejected, and what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import CANDIDATE_COLUMN, REJECTED_COLUMN
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns, ResponseColumns


class CutPrompts(ResponseColumns):
    """The column ``truncated_prompt_tokens``, where prompts may be cut."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"truncated_prompt_tokens": pa.int64()}

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        return [pa.array([response.truncated_prompt_tokens for response in responses], pa.int64())]


class Rejected(ResponseColumns):
    """The column ``rejected`` of a step with one completion: null where the response is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        self.fields = [] if spec.asks_several else self.fields


class RejectedCompletions(CompletionColumns):
    """The column ``rejected`` of a step with several completions: that of a row is null if one is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        self.fields = self.fields if spec.asks_several else []


class Candidates(CompletionColumns):
    """The column ``candidate``: which completion of an earlier step an answer is about.

    It is its place, from 0, among the completions as they stood when it was asked.
    """

    TYPES: ClassVar[dict[str, pa.DataType]] = {CANDIDATE_COLUMN: pa.int32()}
