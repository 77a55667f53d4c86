# SPDX-License-Identifier: Apache-2.0
"""Why a response is not what was asked for, where its row goes on all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.tasks.optional_columns.base import ResponseColumns


class Rejected(ResponseColumns):
    """The column ``rejected``: null where the response is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        return [pa.array([response.extra.get(REJECTED_COLUMN) for response in responses], pa.string())]
