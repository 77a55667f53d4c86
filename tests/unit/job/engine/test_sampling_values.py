# SPDX-License-Identifier: Apache-2.0
"""Values that JSON and the columns of a table write in another way than vLLM takes them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.engine.request_values import tidied

TYPES = {
    "temperature": float,
    "top_k": int,
    "seed": "int | None",
    "max_tokens": "int | None",
    "stop_token_ids": "list[int] | None",
    "stop": "str | list[str] | None",
    "logit_bias": "dict[int, float] | None",
    "structured_outputs": "vllm.sampling_params.StructuredOutputsParams | None",
}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        pytest.param({"logit_bias": {"2": 100, "7": -1.5}}, {"logit_bias": {2: 100, 7: -1.5}}, id="JSON"),
        pytest.param({"logit_bias": {"2": None, "7": 1.0}}, {"logit_bias": {7: 1.0}}, id="a struct"),
        pytest.param({"logit_bias": [("2", 1.0)]}, {"logit_bias": {2: 1.0}}, id="a map"),
        pytest.param({"logit_bias": None}, {}, id="no bias"),
        pytest.param({"seed": 7.0, "top_k": 5.0}, {"seed": 7, "top_k": 5}, id="whole numbers as floats"),
        pytest.param({"seed": 7.5}, {"seed": 7.5}, id="a broken one is vLLM's to refuse"),
        pytest.param({"temperature": 1.0}, {"temperature": 1.0}, id="a number that may be broken"),
        pytest.param({"stop_token_ids": [5.0, None]}, {"stop_token_ids": [5]}, id="ids in a list"),
        pytest.param({"stop": ["a", None]}, {"stop": ["a"]}, id="null in a list"),
        pytest.param({"max_tokens": None, "seed": None}, {"max_tokens": None}, id="no limit"),
        pytest.param(
            {"structured_outputs": {"choice": ["a"], "regex": None}},
            {"structured_outputs": {"choice": ["a"]}},
            id="kinds of other rows",
        ),
        pytest.param({"structured_outputs": {"choice": None, "regex": None}}, {}, id="none of its kinds"),
        pytest.param({"structured_outputs": {}}, {"structured_outputs": {}}, id="vLLM's to refuse"),
    ],
)
def test_values(given: dict[str, Any], made: dict[str, Any]) -> None:
    found = tidied(given, TYPES)
    assert found == made
    assert {name: type(value) for name, value in found.items()} == {
        name: type(value) for name, value in made.items()
    }


@pytest.mark.parametrize("biases", [{"yes": 1}, {"": 1}, 3, ["yes"], {3.7: 1}, {True: 1}])
def test_a_key_that_is_no_token(biases: Any) -> None:
    with pytest.raises(ValueError, match=r"^logit_bias: .* give"):
        tidied({"logit_bias": biases}, TYPES)
