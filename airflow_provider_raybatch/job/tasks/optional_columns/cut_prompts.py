# SPDX-License-Identifier: Apache-2.0
"""How many tokens of a prompt were cut off, where prompts may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import pyarrow as pa

from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.tasks.optional_columns.base import ResponseColumns


class CutPrompts(ResponseColumns):
    """The column ``truncated_prompt_tokens``."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"truncated_prompt_tokens": pa.int64()}

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        return [pa.array([response.truncated_prompt_tokens for response in responses], pa.int64())]
