# SPDX-License-Identifier: Apache-2.0
"""Why a response is not what was asked for, where its row goes on all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Completion, Response
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns, ResponseColumns


class Rejected(ResponseColumns):
    """The column ``rejected`` of a step with one completion: null where the response is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        self.fields = [] if spec.asks_several else self.fields

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        return [pa.array([response.extra.get(REJECTED_COLUMN) for response in responses], pa.string())]


class RejectedCompletions(CompletionColumns):
    """The column ``rejected`` of a step with several completions: that of a row is null if one is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        self.fields = self.fields if spec.asks_several else []

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        return [pa.array([one.extra.get(REJECTED_COLUMN) for one in completions], pa.string())]
