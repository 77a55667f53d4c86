# SPDX-License-Identifier: Apache-2.0
"""Text generation: a row asks a prompt or a chat, and yields one completion or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN
from airflow_provider_raybatch.job.input.json_types import Kind
from airflow_provider_raybatch.job.media.values import holds_bytes
from airflow_provider_raybatch.job.row import Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task, Totals, with_failures
from airflow_provider_raybatch.job.tasks.optional_columns.groups import Groups
from airflow_provider_raybatch.job.tasks.response_check import PARSE, checked, checked_in_step
from airflow_provider_raybatch.job.tasks.typed_columns import (
    arrow_types,
    column_kinds,
    typed,
    unfit,
    values_of,
)

COMPLETION = pa.struct([("text", pa.string()), ("finish_reason", pa.string()), ("output_tokens", pa.int64())])


def output_type(
    keeps_completions: bool, of_rows: Sequence[pa.Field] = (), of_completions: Sequence[pa.Field] = ()
) -> pa.StructType:
    """The output columns: ``response`` and ``finish_reason`` of the first completion, tokens of all.

    :param of_rows: optional columns.
    :param of_completions: optional columns of each completion.
    """
    completion = pa.list_(pa.struct([*COMPLETION, *of_completions]))
    return pa.struct([
        ("response", pa.string()),
        ("finish_reason", pa.string()),
        ("input_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        *of_rows,
        *of_completions,
        *([("completions", completion)] if keeps_completions else []),
    ])


class Generate(Task):
    """See :class:`~airflow_provider_raybatch.job.tasks.base.Task` for the methods."""

    @property
    def keeps_completions(self) -> bool:
        """Whether rows may have more than one completion, so that there is a column for them."""
        spec = self.spec
        rows_decide = spec.samples_by_row and not spec.step_name
        several_at_times = rows_decide or spec.prompt_function is not None
        return spec.asks_several or several_at_times

    @cached_property
    def _groups(self) -> Groups:
        return Groups(self.spec)

    def _type(self, keeps_completions: bool) -> pa.StructType:
        return output_type(keeps_completions, self._groups.row_fields, self._groups.completion_fields)

    @cached_property
    def output_type(self) -> pa.StructType:
        return self._type(self.keeps_completions)

    def leaves_out(self, column: pa.Field) -> bool:
        """Columns of images that hold bytes, unless they are asked for: they are most of the input."""
        is_kept = self.spec.keep_images or column.name == self.spec.id_column
        return column.name in self.spec.image_columns and not is_kept and holds_bytes(column.type)

    def stored_inputs(self, inputs: pa.Table) -> pa.Table:
        return inputs.drop_columns([column.name for column in inputs.schema if self.leaves_out(column)])

    @property
    def sample_fields(self) -> Sequence[str]:
        return (*super().sample_fields, "finish_reason")

    @property
    def stored_type(self) -> pa.StructType:
        """All columns, since another job may keep completions.

        Optional columns of completions, which may be large, are kept once where there is one completion.
        """
        return self._type(self.keeps_completions or not self._groups.completion_fields)

    def outputs(self, responses: Sequence[Response | None]) -> pa.StructArray:
        """See :meth:`Task.outputs`; null also for a row that its step did not ask."""
        asked = [one if one is not None and one.completions else None for one in responses]
        plain = output_type(self.keeps_completions)
        if self.output_type == plain:
            return super().outputs(asked)
        made = [None if response is None else self.output(response) for response in asked]
        return self._groups.outputs(pa.array(made, plain), asked, self.output_type)

    def output(self, response: Response) -> dict[str, Any]:
        first = response.completions[0]
        return {
            "response": first.text,
            "finish_reason": first.finish_reason,
            "input_tokens": response.input_tokens,
            "cached_tokens": response.cached_tokens,
            "output_tokens": response.output_tokens,
            "completions": [
                {"text": c.text, "finish_reason": c.finish_reason, "output_tokens": c.output_tokens}
                for c in response.completions
            ],
        }

    def check(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        if not self.spec.step_name:
            return self._checked(response, row_sampling)
        return checked_in_step(
            response,
            self.spec.question.step,
            self._kinds,
            partial(self._checked, row_sampling=row_sampling),
        )

    def _checked(self, response: Response, row_sampling: Mapping[str, Any]) -> Response | RowFailure:
        made = checked(response, self.spec, row_sampling, self._groups.check)
        if not self._kinds or isinstance(made, RowFailure):
            return made
        try:
            for completion in response.completions:
                values_of(completion.text, self._kinds)
        except ValueError as error:
            reason = unfit(error, completion.text)
            return RowFailure(PARSE, reason, response.input_tokens, response.output_tokens)
        return made

    @cached_property
    def _kinds(self) -> dict[str, Kind]:
        """Of the typed columns, by the names of their properties."""
        schema = self.spec.response_schema
        return {} if schema is None else column_kinds(schema)

    @property
    def derived(self) -> dict[str, pa.DataType]:
        return {self.spec.output_prefix + name: kind for name, kind in arrow_types(self._kinds).items()}

    def with_derived(self, table: pa.Table) -> pa.Table:
        if not self._kinds:
            return table
        texts = pa.nulls(table.num_rows, pa.string())
        if "output" in table.schema.names:
            texts = pc.if_else(table["ok"], pc.struct_field(table["output"], "response"), None)
            if table.schema.field("output").type.get_field_index(REJECTED_COLUMN) >= 0:
                good = pc.is_null(pc.struct_field(table["output"], REJECTED_COLUMN))
                texts = pc.if_else(good, texts, None)
        columns, reasons = typed(texts, self._kinds)
        return with_failures(table.append_column("derived", columns), reasons, PARSE)

    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        completions = outputs
        if self.keeps_completions:
            completions = pc.list_flatten(pc.struct_field(outputs, "completions"))
        reasons = pc.struct_field(completions, "finish_reason")
        reasoning = None
        if self.spec.splits_reasoning:
            reasoning = _sum(pc.struct_field(completions, "reasoning_tokens"))
        return Totals(
            _sum(pc.struct_field(outputs, "input_tokens")),
            _sum(pc.struct_field(outputs, "cached_tokens")),
            _sum(pc.struct_field(outputs, "output_tokens")),
            dict(Counter(reasons.drop_null().to_pylist())),
            reasoning,
        )

    def adapted(self, found: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
        """See :meth:`Task.adapted`; an output without `completions` gets its one completion."""
        whole = super().adapted(found, kind)
        place = kind.get_field_index("completions")
        if place < 0 or not whole.field(place).null_count:
            return whole
        arrays = whole.flatten()
        arrays[place] = pc.coalesce(arrays[place], _completions_of_one(whole, kind[place].type))
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.is_null(found))


def _completions_of_one(found: pa.StructArray, kind: pa.ListType) -> pa.Array:
    columns = dict(zip(found.type.names, found.flatten(), strict=True))
    columns["text"] = columns["response"]
    fields = list(kind.value_type)
    one = pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)
    return pa.ListArray.from_arrays(pa.array(range(len(found) + 1), pa.int32()), one, type=kind)


def _sum(column: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.sum(column).as_py() or 0)
