# SPDX-License-Identifier: Apache-2.0
"""A spec that asks in steps, split into a spec for each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from airflow_provider_raybatch.contract.arguments.adapters import revision_of
from airflow_provider_raybatch.contract.arguments.steps import AskedStep, StepArguments
from airflow_provider_raybatch.contract.base import sentence
from airflow_provider_raybatch.contract.fan_out import check_fan_out
from airflow_provider_raybatch.contract.step_columns import StepColumns, check_columns

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec


def split(spec: BatchInferenceSpec) -> tuple[BatchInferenceSpec, ...]:
    """A spec for each step, as if it were the only question; `spec` itself without steps.

    :raises ValueError: a step is wrong; one sentence, with its name.
    """
    if not spec.steps:
        return (spec,)
    shared = spec.model_dump(exclude={"steps", "asked_step"})
    found: list[BatchInferenceSpec] = []
    for number, step in enumerate(spec.steps):
        earlier = [name for one in found for name in one.step_columns]
        asked = AskedStep(steps=spec.steps, number=number, earlier_columns=earlier)
        own = step.model_dump(exclude={"name", "each", "best", "on_rejected", "when"})
        own |= {"sampling": {**spec.sampling, **step.sampling}, "output_prefix": f"{step.name}_"}
        # Rows that ask alike in one step may differ in the next.
        own |= {"asked_step": asked, "deduplicate": False}
        own["adapter"] = step.adapter or spec.adapter
        own |= {} if asked.is_last else {"postprocess": None}
        try:
            found.append(type(spec).model_validate({**shared, **own}))
        except ValidationError as error:
            raise ValueError(f"steps: {step.name}: {sentence(error).rstrip('.')}") from None
    return tuple(found)


def adapters_of(spec: BatchInferenceSpec) -> dict[str, str]:
    """Where the adapters of all steps lie, by name."""
    given = dict.fromkeys(step.adapter or spec.adapter for step in spec.steps or ())
    return {revision_of(location)[0]: location for location in given if location is not None}


def with_adapters(spec: BatchInferenceSpec, locations: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a spec whose steps have their adapters at other places.

    :param locations: by name.
    """

    def moved(location: str | None) -> str | None:
        return None if location is None else locations.get(revision_of(location)[0], location)

    steps = [step.model_copy(update={"adapter": moved(step.adapter)}) for step in spec.steps or ()]
    return {"steps": steps, "adapter": moved(spec.adapter)}


def check_steps(steps: Sequence[StepArguments], specs: Sequence[BatchInferenceSpec]) -> None:
    """Check what steps read of each other.

    :param specs: of the steps, as :func:`split` makes them.
    :raises ValueError: one sentence, with the name of the step.
    """
    asked = list(zip(steps, specs, strict=True))
    check_fan_out([(step, one.asks_several, one.sampling, one.response_schema) for step, one in asked])
    check_columns([StepColumns(step, one.made_columns, list(one.column_arguments())) for step, one in asked])
