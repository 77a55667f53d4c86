# SPDX-License-Identifier: Apache-2.0
"""What a task is: the one place that knows the shape of a row's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.data import REUSED_COLUMN
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.render import Render, renderer
from airflow_provider_raybatch.job.row import RenderError, Request, Response, RowFailure


@dataclass(frozen=True)
class Totals:
    """Sums over the outputs of many rows, for the manifest.

    :param cached_tokens: of `input_tokens`, those that came out of the prefix cache.
    :param reasoning_tokens: of `output_tokens`, those before the answers; ``None`` where nothing splits them.
    :param finish_reasons: how many outputs ended for each reason.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: Mapping[str, int] = field(default_factory=dict)
    reasoning_tokens: int | None = None

    def __add__(self, other: Totals) -> Totals:
        """The sums over both."""
        reasoning = [one.reasoning_tokens for one in (self, other) if one.reasoning_tokens is not None]
        return Totals(
            self.input_tokens + other.input_tokens,
            self.cached_tokens + other.cached_tokens,
            self.output_tokens + other.output_tokens,
            dict(Counter(self.finish_reasons) + Counter(other.finish_reasons)),
            sum(reasoning) if reasoning else None,
        )


@dataclass(frozen=True)
class Task(ABC):
    """What one row of a job asks and yields. Picklable.

    A new kind of task is a subclass in a module of its own, and an entry in
    :mod:`~airflow_provider_raybatch.job.tasks.registry`: all other code carries outputs unread.
    """

    spec: BatchInferenceSpec

    @property
    @abstractmethod
    def output_type(self) -> pa.StructType:
        """The output columns of this job's parts and dataset, in their order; the first is the response."""

    @property
    def stored_type(self) -> pa.StructType:
        """The columns that the response store keeps: all that a job of this kind may have."""
        return self.output_type

    @abstractmethod
    def output(self, response: Response) -> dict[str, Any]:
        """The values of :attr:`stored_type` for a good response."""

    def outputs(self, responses: Sequence[Response | None]) -> pa.StructArray:
        """Outputs of many rows as :attr:`output_type`; null without a response."""
        made = [None if response is None else self.output(response) for response in responses]
        return pa.array(made, self.output_type)

    @abstractmethod
    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        """The sums over outputs of :attr:`output_type`."""

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        """The response, or the failure of its row if it is not what was asked for.

        :param row_sampling: the row's own sampling parameters.
        """
        return response

    def adapted(self, found: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
        """Outputs of another job of this kind of task as `kind`; fields that it did not have are null.

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
    def published_type(self) -> pa.StructType:
        """The output columns of the dataset, by default :attr:`output_type`; the first is the response."""
        return self.output_type

    def published(self, outputs: pa.ChunkedArray) -> list[pa.ChunkedArray]:
        """The columns of :attr:`published_type`, made of outputs of good rows."""
        return [
            self.published_column(field, pc.struct_field(outputs, field.name))
            for field in self.published_type
        ]

    def published_column(self, field: pa.Field, found: pa.ChunkedArray) -> pa.ChunkedArray:
        """One column of :attr:`published_type`, made of that of :attr:`output_type`."""
        return found.cast(field.type)

    def measured(self, outputs: Iterable[pa.ChunkedArray]) -> Task:
        """This task, once it knows what outputs alone tell, such as the size of vectors, or the labels.

        :param outputs: of good rows, part by part; read only as far as they are needed.
        """
        return self

    @property
    def chunk_index(self) -> str | None:
        """The output column that numbers the dataset's rows of one row; ``None`` where there is one."""
        return None

    def split(self, outputs: pa.StructArray) -> tuple[pa.StructArray, npt.NDArray[np.int64]]:
        """Outputs of good rows as those of the dataset's rows, and the place of each one's row.

        :returns: an array with the fields of :attr:`published_type`; by default `outputs` as they are.
        """
        return outputs, np.arange(len(outputs))

    @property
    def sample_fields(self) -> Sequence[str]:
        """Output columns that a report shows of a row, besides its response."""
        return ("input_tokens", "output_tokens")

    def leaves_out(self, column: pa.Field) -> bool:
        """Whether the dataset lacks a column of the input, or has it in another form; by default none."""
        return False

    def stored_inputs(self, inputs: pa.Table) -> pa.Table:
        """The columns of the input that parts have; by default all, since dead letters have them, too."""
        return inputs

    @property
    def derived(self) -> dict[str, pa.DataType]:
        """Columns that publishing makes of outputs, by their names in the dataset; by default none."""
        return {}

    def with_derived(self, table: pa.Table) -> pa.Table:
        """Rows of parts with the :attr:`derived` columns as ``derived``; a row that has none fails."""
        return table

    @property
    def column_names(self) -> list[str]:
        """Names of all columns of the dataset that are not the input's."""
        return [*self.names.values(), *self.derived]

    @property
    def names(self) -> dict[str, str]:
        """The name of each output column in the dataset, by its own name, in the order of the dataset."""
        own = [column.name for column in self.published_type]
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
        step = self.spec.step_name
        return f"rename the step {step!r}" if step else "set output_prefix"

    def requests(self, reads_images: bool = True) -> Render:
        """The function that makes a request of a row's values.

        :param reads_images: see :func:`~airflow_provider_raybatch.job.request.render.renderer`.
        :raises PreflightError: a user's function can't be imported.
        """
        return renderer(self.spec, reads_images)

    def renderer(self) -> Render:
        """The function that turns a row into a request.

        :raises PreflightError: a user's function can't be imported.
        """
        base = self.requests()
        outputs = {name.lower() for name in self.column_names}  # warehouses take `Response` for `response`

        def render(row: Mapping[str, Any]) -> Request:
            # JSONL has no header, so a later row may have a column that preflight could not see.
            taken = next((name for name in row if name.lower() in outputs), None)
            if taken is not None:
                remedy = self.rename_remedy(taken)
                raise RenderError(f"the row has a column {taken!r}, which is also an output column; {remedy}")
            return base(row)

        return render


def with_failures(table: pa.Table, reasons: pa.Array, step: str) -> pa.Table:
    """Rows of parts, where those with a reason have failed.

    :param reasons: null for a row that stays as it is.
    """
    if reasons.null_count == len(reasons):
        return table
    failures = [
        failure if reason is None else {"step": step, "reason": reason, "request": ""}
        for failure, reason in zip(table["failure"].to_pylist(), reasons.to_pylist(), strict=True)
    ]
    place = table.schema.get_field_index("failure")
    table = table.set_column(place, "failure", pa.array(failures, table.schema.field(place).type))
    ok = pc.and_(table["ok"], pc.is_null(reasons))
    return table.set_column(table.schema.get_field_index("ok"), "ok", ok)


class PoolingTask(Task):
    """A row yields numbers; see :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods."""

    @property
    def token_fields(self) -> list[pa.Field]:
        """The columns about a row's tokens."""
        fields = [pa.field("input_tokens", pa.int64())]
        if self.spec.on_overlong == "truncate":
            fields.append(pa.field("truncated_prompt_tokens", pa.int64()))
        return fields

    def tokens(self, response: Response) -> dict[str, int]:
        """The values of :attr:`token_fields`."""
        return {field.name: getattr(response, field.name) for field in self.token_fields}

    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        """See :meth:`Task.totals`."""
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
