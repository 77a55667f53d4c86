# SPDX-License-Identifier: Apache-2.0
"""A step that asks about each completion of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raybatch.contract.arguments.steps import REJECTED_COLUMN
from airflow_provider_raybatch.job.input.json_types import Kind
from airflow_provider_raybatch.job.request.render import Render
from airflow_provider_raybatch.job.row import RenderError, Request
from airflow_provider_raybatch.job.tasks.typed_columns import column_kinds, values_of
from airflow_provider_raybatch.job.work import Job

_TEXT = "text"


def renderer_of(step: Job) -> Render:
    """What turns a row into the request of a step, or into its requests.

    :raises PreflightError: a user's function can't be imported.
    """
    base, asked = step.task.renderer(), step.spec.asked_step
    if asked is None or asked.step.each is None:
        return base
    completions = Completions(step.earlier_steps[asked.earlier.index(asked.step.each)])

    def render(row: Mapping[str, Any]) -> Request:
        return Request(each=tuple(base({**row, **one}) for one in completions.of(row)))

    return render


class Completions:
    """The completions of an earlier step, each as if it were the only one.

    :param step: that has them.
    """

    def __init__(self, step: Job) -> None:
        schema = step.spec.response_schema
        self._name = step.spec.asked_step.step.name if step.spec.asked_step else ""
        self._prefix = step.spec.output_prefix
        self._kinds: Mapping[str, Kind] = {} if schema is None else column_kinds(schema)

    def of(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The columns of each good completion; of each one, where none is good.

        :raises RenderError: the row has none.
        """
        found = row.get(f"{self._prefix}completions")
        if not found:
            raise RenderError(
                f"step {self._name!r} was not asked about this row, so it has no completions; give the step "
                "that asks about each of them a condition (when)"
            )
        good = [one for one in found if one[REJECTED_COLUMN] is None]
        return map(self._columns, good or found)

    def _columns(self, completion: Mapping[str, Any]) -> dict[str, Any]:
        own = {("response" if name == _TEXT else name): value for name, value in completion.items()}
        own.pop("output_tokens")  # that of a row is of all its completions
        if self._kinds:
            bad = completion[REJECTED_COLUMN] is not None
            own |= dict.fromkeys(self._kinds) if bad else values_of(completion[_TEXT], self._kinds)
        return {self._prefix + name: value for name, value in own.items()}
