# SPDX-License-Identifier: Apache-2.0
"""Which completion of an earlier step an answer is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import CANDIDATE_COLUMN
from airflow_provider_raybatch.job.row import Completion
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns


class Candidates(CompletionColumns):
    """The column ``candidate``: its place, from 0, among the completions as they stood when it was asked."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {CANDIDATE_COLUMN: pa.int32()}

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        return [pa.array([one.extra[CANDIDATE_COLUMN] for one in completions], pa.int32())]
