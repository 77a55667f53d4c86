# SPDX-License-Identifier: Apache-2.0
"""No argument takes a boolean for a number."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.specs import spec


def takes(annotation: object, value: object) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


NUMBERS = [
    name
    for name, field in BatchInferenceSpec.model_fields.items()
    if takes(field.annotation, 1.0) and not takes(field.annotation, "text") and field.annotation is not bool
]


def test_numbers_are_found_by_their_types() -> None:
    assert {"limit", "replicas", "max_errors", "num_gpus", "max_cost", "flush_interval"} <= set(NUMBERS)
    assert {"reuse", "deduplicate", "sampling"}.isdisjoint(NUMBERS)


@pytest.mark.parametrize("name", NUMBERS)
def test_true_is_no_number(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**{name: True})
    assert str(caught.value).startswith(f"{name}: it must be a number, but it is True")


def test_true_stays_true_where_it_is_meant() -> None:
    made = spec(preserve_order=True, csv_options={"header": True}, engine_args={"enforce_eager": True})
    assert (made.preserve_order, made.engine_args) == (True, {"enforce_eager": True})
