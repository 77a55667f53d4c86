# SPDX-License-Identifier: Apache-2.0
"""The response in a column that the user names."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

ROWS = [{"id": number, "text": f"company {number}"} for number in range(5)]


def test_renamed_response_is_not_paid_for_again(place: EchoPlace) -> None:
    place.job(0, ROWS)
    assert place.generated() == 5
    manifest = place.job(1, ROWS, response_column="inferred_industry", output_prefix="llm_")
    assert place.generated() == 5
    rows = place.rows(manifest)
    assert [row["inferred_industry"] for row in rows] == [row["text"] for row in ROWS]
    assert list(rows[0])[:4] == ["id", "text", "inferred_industry", "llm_finish_reason"]
    assert manifest.counts.resumed == 5


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Text",
            "response_column: the source has a column 'text' already, which is also an output column, "
            "since many warehouses ignore case; choose another name for the response.",
        ),
        (
            "Finish_Reason",
            "response_column: 'Finish_Reason' is also the name of another output column (they are "
            "Finish_Reason, finish_reason, input_tokens, cached_tokens, output_tokens); choose another name.",
        ),
    ],
)
def test_taken_name_is_refused_before_anything_is_paid(place: EchoPlace, name: str, sentence: str) -> None:
    with pytest.raises(PreflightError) as refused:
        place.job(0, ROWS, response_column=name)
    assert str(refused.value) == sentence
    assert place.generated() == 0


def test_a_later_row_that_has_the_name_is_a_dead_letter(place: EchoPlace) -> None:
    rows = [*({"id": n, "text": "x"} for n in range(1001)), {"id": 1001, "text": "y", "INDUSTRY": "z"}]
    manifest = place.job(0, rows, response_column="industry", max_errors=1)
    assert (manifest.counts.ok, manifest.counts.error) == (1001, 1)
    (letter,) = place.letters(manifest)
    assert letter["reason"] == (
        "the row has a column 'INDUSTRY', which is also an output column; choose another response_column"
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "a column's name is empty; give it at least one letter"),
        (" industry", "' industry' begins or ends with white space; write 'industry'"),
        ("in\ndustry", r"'in\ndustry' has the control character '\n'; remove it"),
    ],
)
def test_a_name_that_is_not_usable_is_refused_at_once(name: str, problem: str) -> None:
    with pytest.raises(SpecError) as refused:
        spec(destination="/out", response_column=name)
    assert str(refused.value) == f"response_column: {problem}."
