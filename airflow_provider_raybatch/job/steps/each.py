# SPDX-License-Identifier: Apache-2.0
"""A step that asks about each completion of an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.job.request.render import Render
from airflow_provider_raybatch.job.row import RenderError, Request
from airflow_provider_raybatch.job.tasks.completions import Completions
from airflow_provider_raybatch.job.work import Job


def renderer_of(step: Job) -> Render:
    """What turns a row into the request of a step, or into its requests.

    In each of these, the columns of all steps whose completions belong together are those of one completion.

    :raises PreflightError: a user's function can't be imported.
    """
    base, asked = step.task.renderer(), step.spec.asked_step
    if asked is None or asked.step.each is None:
        return base
    family = {name: Completions(one.spec) for name, one in step.family.items()}
    of = asked.step.each

    def render(row: Mapping[str, Any]) -> Request:
        places = family[of].places(row)
        if not places:
            raise RenderError(
                f"step {of!r} was not asked about this row, so it has no completions; give the step that "
                "asks about each of them a condition (when)"
            )
        each = tuple(base({**row, **_at(place, row)}) for place in places)
        return Request(each=each, places=tuple(places))

    def _at(place: int, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for one in family.values() for name, value in one.columns(row, place).items()}

    return render
