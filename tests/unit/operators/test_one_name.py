# SPDX-License-Identifier: Apache-2.0
"""An argument has one name in operator, spec, errors and job."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, build_spec
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from tests.support.batches import batch

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
    assert given == set(BatchInferenceSpec.model_fields) - NOT_ARGUMENTS


def test_each_argument_is_followed_from_operator_to_spec() -> None:
    assert tuple(batch()._arguments()) == ARGUMENTS


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_value_is_refused_under_its_name(name: str) -> None:
    """The contract makes the error, and the user sees it unchanged."""
    ways = {"messages", "messages_column", "prompt_column", "prompt_function"}
    wrong = {**GOOD, **({"prompt": None} if name in ways else {}), name: object()}
    with pytest.raises(SpecError) as refused:
        build_spec(wrong)
    assert re.match(rf"{name}(\.\d+)?: ", str(refused.value)), refused.value
