# SPDX-License-Identifier: Apache-2.0
"""An argument has one name in operator, spec, errors and job."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_raybatch
from airflow_provider_raybatch.argument_fields import FIELDS_OF, HOMES
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, FIELDS, spec_of_fields
from airflow_provider_raybatch.operators.base import RayOperator
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from tests.support.batches import batch

PACKAGE = Path(airflow_provider_raybatch.__file__).parent
GOOD: dict[str, Any] = {"source": "/in", "prompt": "Say {row.x}", "model": "m", "destination": "/out"}

OF_THE_AIRFLOW_SIDE = {
    "aws_conn_id": "names a connection, whose credentials travel sealed",
    "hf_conn_id": "names a connection, whose token travels sealed",
    "runtime_env": "is given to Ray's Jobs API, beside the spec",
}
"""Arguments that the spec does not have, each with the reason."""


def parameters(kind: type) -> list[str]:
    signature = inspect.signature(kind.__init__)
    return [name for name in signature.parameters if name not in {"self", "kwargs"}]


def test_the_spec_has_the_operators_arguments_under_their_names() -> None:
    given = set(parameters(RayBatchInferenceOperator)) - OF_THE_AIRFLOW_SIDE.keys()
    assert given == set(ARGUMENTS)
    assert len({*given, *OF_THE_AIRFLOW_SIDE, *parameters(RayOperator)}) <= 45
    alone = given - FIELDS_OF.keys() | {"messages_column"}
    assert {*alone, *(name for names in FIELDS_OF.values() for name in names)} == set(FIELDS)


def test_fields_beside_the_arguments_are_in_the_spec() -> None:
    assert set(BatchInferenceSpec.model_fields) > NOT_ARGUMENTS
    assert NOT_ARGUMENTS & set(parameters(RayOperator)) == {"deadline"}


def test_each_argument_is_followed_from_operator_to_spec() -> None:
    assert set(batch().arguments()) == set(ARGUMENTS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_wrong_value_is_refused_under_its_name(name: str) -> None:
    """The contract makes the error, and the user sees it unchanged."""
    ways = {"messages", "messages_column", "prompt_column", "prompt_function"}
    wrong = {**GOOD, **({"prompt": None} if name in ways else {}), name: object()}
    with pytest.raises(SpecError) as refused:
        spec_of_fields(wrong)
    assert re.match(rf"{name}(\.\d+)?: ", str(refused.value)), refused.value


@pytest.mark.parametrize("name", ["prompt", "max_tokens_total", "reuse", "destination"])
def test_an_argument_takes_few_hops(name: str) -> None:
    """At most seven modules use an argument: operator, contract, and the modules that act on it.

    What shows a job before it runs stands beside its way: the command line and `job/preview`. A step has
    arguments of its own.
    """
    beside = {PACKAGE / "cli", PACKAGE / "job/preview"}
    of_steps = PACKAGE / "contract/arguments/steps.py"
    touched = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent not in beside
        and path != of_steps
        and re.search(rf"(self|spec|limits)\.{name}\b|^    {name}: ", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert ("operators/ray_batch.py" in touched) is (HOMES.get(name) is None)
    assert len(touched) <= 7, touched
