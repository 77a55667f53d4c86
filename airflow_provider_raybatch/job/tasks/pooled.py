# SPDX-License-Identifier: Apache-2.0
"""What the tasks of pooling models have in common: tokens of a text, and numbers that must be finite."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task, Totals


class PoolingTask(Task):
    """A row yields numbers; see :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods."""

    @property
    def token_fields(self) -> list[pa.Field]:
        """The columns about a row's tokens."""
        fields = [pa.field("input_tokens", pa.int64())]
        if self.spec.on_overlong == "truncate":
            fields.append(pa.field("truncated_prompt_tokens", pa.int64()))
        return fields

    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        return Totals(int(pc.sum(pc.struct_field(outputs, "input_tokens")).as_py() or 0))


def failure_of_numbers(response: Response, one: str, all_of_them: str) -> RowFailure | None:
    """Why a response has no numbers that mean something; ``None`` if it has.

    :param one: what the engine should have given, for the message; `all_of_them` has the numbers.
    """
    numbers = response.pooled
    if numbers is None or numbers.ndim != 1 or not numbers.size:
        return RowFailure("engine", f"the engine gave no {one}", response.input_tokens)
    if not np.isfinite(numbers).all():
        reason = (
            f"the {all_of_them} has numbers that are not finite (NaN or infinite); try dtype='float32' in "
        )
        return RowFailure("engine", f"{reason}engine_args", response.input_tokens)
    return None
