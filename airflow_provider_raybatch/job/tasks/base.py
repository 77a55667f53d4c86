# SPDX-License-Identifier: Apache-2.0
"""What a task is: the one place that knows the shape of a row's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.output import REUSED_COLUMN
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.render import Render, renderer
from airflow_provider_raybatch.job.row import RenderError, Request, Response, RowFailure


@dataclass(frozen=True)
class Totals:
    """What the outputs of many rows add up to in the manifest.

    :param cached_tokens: of `input_tokens`, how many came out of the prefix cache.
    :param finish_reasons: how often an output ended for which reason, where the task has such a thing.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Totals) -> Totals:
        """Both together."""
        return Totals(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            dict(Counter(self.finish_reasons) + Counter(other.finish_reasons)),
        )


@dataclass(frozen=True)
class Task(ABC):
    """What one row of a job asks and yields. Picklable.

    Parts, the response store, duplicates and publishing carry outputs without knowing what is in them. So a
    new kind of task is a subclass in a module of its own, and an entry in
    :mod:`~airflow_provider_raybatch.job.tasks.registry`.
    """

    spec: BatchInferenceSpec

    @property
    @abstractmethod
    def output_type(self) -> pa.StructType:
        """The output columns of this job's parts and dataset, under their own names, in their order.

        The first is the response, which `response_column` renames.
        """

    @property
    def stored_type(self) -> pa.StructType:
        """Those that the response store keeps: all that a job of this kind may have."""
        return self.output_type

    @abstractmethod
    def output(self, response: Response) -> dict[str, Any]:
        """The values of :attr:`stored_type` for a good response."""

    @abstractmethod
    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        """What outputs of :attr:`output_type` add up to."""

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        """The response, or the failure of its row where it is not what was asked for.

        :param row_sampling: what the row asked besides the job's sampling.
        """
        return response

    def adapted(self, found: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
        """Outputs of any job of this kind of task as `kind`.

        Fields that an older version did not write are null, those it alone knew are left out.

        :param kind: :attr:`output_type` or :attr:`stored_type`.
        """
        arrays = [
            pc.struct_field(found, field.name).cast(field.type)
            if found.type.get_field_index(field.name) >= 0
            else pa.nulls(len(found), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.is_null(found))

    @property
    def reuses_all(self) -> bool:
        """Whether :meth:`reusable` leaves none out."""
        return True

    def reusable(self, outputs: pa.StructArray) -> pa.Array:
        """Which stored outputs serve a job of today; the others count as misses."""
        return pa.repeat(pa.scalar(True), len(outputs))

    @property
    def names(self) -> dict[str, str]:
        """What each output column is called in the dataset, by its own name, in the order of the dataset."""
        own = [column.name for column in self.output_type]
        own += [REUSED_COLUMN] if self.spec.reuse is not None else []
        names = {name: self.spec.output_prefix + name for name in own}
        if self.spec.response_column is not None:
            names[own[0]] = self.spec.response_column
        return names

    def rename_remedy(self, name: str) -> str:
        """How to rename the output column that the dataset would have as `name`."""
        chosen = self.spec.response_column
        if chosen is not None and chosen.lower() == name.lower():
            return "choose another response_column"
        return "set output_prefix"

    def renderer(self) -> Render:
        """The function that turns a row into a request.

        :raises PreflightError: a user's function can't be imported.
        """
        base = renderer(self.spec)
        outputs = {name.lower() for name in self.names.values()}  # warehouses take `Response` for `response`

        def render(row: Mapping[str, Any]) -> Request:
            # JSONL has no header, so a later row may have a column that preflight could not see.
            taken = next((name for name in row if name.lower() in outputs), None)
            if taken is not None:
                remedy = self.rename_remedy(taken)
                raise RenderError(f"the row has a column {taken!r}, which is also an output column; {remedy}")
            return base(row)

        return render
