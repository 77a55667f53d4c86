# SPDX-License-Identifier: Apache-2.0
"""The groups of optional columns, and those that a job has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.tasks.optional_columns.kinds import (
    Candidates,
    CompletionColumns,
    CutPrompts,
    Logprobs,
    OptionalColumns,
    PromptLogprobs,
    Reasoning,
    Rejected,
    RejectedCompletions,
    ResponseColumns,
    ToolCalls,
)

GROUPS: list[type[OptionalColumns]] = [
    CutPrompts, Rejected, PromptLogprobs, RejectedCompletions, Candidates, Reasoning, Logprobs, ToolCalls,
]  # fmt: skip
"""In the order of their columns; those that a row has once come before those of completions."""


class Groups:
    """The groups that a job of this spec has. Picklable.

    :ivar row_fields: of columns that a row has once.
    :ivar completion_fields: of columns that each completion has.
    """

    def __init__(self, spec: BatchInferenceSpec) -> None:
        wanted = spec.optional_columns
        self._found = [group for kind in GROUPS if (group := kind(spec, wanted)).fields]
        self._of_rows = [group for group in self._found if isinstance(group, ResponseColumns)]
        self._of_completions = [group for group in self._found if isinstance(group, CompletionColumns)]
        self.row_fields: list[pa.Field] = [field for group in self._of_rows for field in group.fields]
        self.completion_fields: list[pa.Field] = [
            field for group in self._of_completions for field in group.fields
        ]

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        """Why a response is not what was asked for, by the first group that says so."""
        for group in self._found:
            if (reason := group.check(response, sampling)) is not None:
                return reason
        return None

    def outputs(
        self, plain: pa.StructArray, responses: Sequence[Response | None], kind: pa.StructType
    ) -> pa.StructArray:
        """Outputs with the optional columns.

        :param plain: the other columns of `responses`; null without a response.
        :param kind: of the outputs.
        """
        good = [response for response in responses if response is not None]
        columns = dict(zip(plain.type.names, plain.filter(pc.is_valid(plain)).flatten(), strict=True))
        for group in self._of_rows:
            columns |= zip(_names(group), group.arrays(good), strict=True)
        completions = [completion for response in good for completion in response.completions]
        more: dict[str, pa.Array] = {}
        for of_each in self._of_completions:
            more |= zip(_names(of_each), of_each.arrays(completions), strict=True)
        firsts = list(accumulate((len(response.completions) for response in good), initial=0))[:-1]
        columns |= {name: array.take(pa.array(firsts, pa.int64())) for name, array in more.items()}
        if "completions" in columns:
            columns["completions"] = _with_members(columns["completions"], list(more.values()), kind)
        made = pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind))
        return _scattered(made, responses)


def _names(group: OptionalColumns) -> list[str]:
    return [field.name for field in group.fields]


def _with_members(lists: pa.ListArray, more: Sequence[pa.Array], kind: pa.StructType) -> pa.ListArray:
    """Lists of completions with further members."""
    wanted = kind.field("completions").type
    members = [*lists.flatten().flatten(), *more]
    values = pa.StructArray.from_arrays(members, fields=list(wanted.value_type))
    return pa.ListArray.from_arrays(lists.offsets, values, type=wanted)


def _scattered(made: pa.StructArray, responses: Sequence[Response | None]) -> pa.StructArray:
    """`made` in the places of the responses that are there."""
    if len(made) == len(responses):
        return made
    there = pa.array([response is not None for response in responses])
    places = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
    return made.take(pc.if_else(there, places, None))
