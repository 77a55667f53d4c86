# SPDX-License-Identifier: Apache-2.0
"""A group of columns that only some jobs have is a class and two entries; the one here counts letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Completion, Response
from airflow_provider_raybatch.job.tasks.generate import Generate
from airflow_provider_raybatch.job.tasks.optional_columns import groups
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns
from tests.support.specs import spec

ONE = Response((Completion("abc", "stop", 1, extra={"letters": 3}),), 5, truncated_prompt_tokens=2)
TWO = Response(
    (Completion("d", "stop", 1, extra={"letters": 1}), Completion("ef", "length", 2, extra={"letters": 2})), 6
)


class Letters(CompletionColumns):
    TYPES: ClassVar[dict[str, pa.DataType]] = {"letters": pa.int8()}

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        return [pa.array([completion.extra["letters"] for completion in completions], pa.int8())]


@pytest.fixture(autouse=True)
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "GROUPS", [*groups.GROUPS, Letters])
    known = BatchInferenceSpec.optional_columns.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        BatchInferenceSpec,
        "optional_columns",
        property(lambda spec: [*known(spec), *(["letters"] if spec.sampling.get("seed") else [])]),
    )


def task(**fields: Any) -> Generate:
    return Generate(spec(**fields))


def test_jobs_without_them_have_no_optional_columns() -> None:
    assert task().output_type.names == [
        "response", "finish_reason", "input_tokens", "cached_tokens", "output_tokens"
    ]  # fmt: skip
    assert task().stored_type.names[-1] == "completions"
    assert task().outputs([ONE, None]).to_pylist()[1] is None


def test_optional_columns_follow_the_others_in_one_order() -> None:
    of_both = task(sampling={"seed": 1}, on_overlong="truncate")
    assert of_both.output_type.names[5:] == ["truncated_prompt_tokens", "letters"]
    (row,) = of_both.outputs([ONE]).to_pylist()
    assert (row["response"], row["truncated_prompt_tokens"], row["letters"]) == ("abc", 2, 3)


def test_failed_rows_between_others_have_no_output() -> None:
    rows = task(sampling={"seed": 1}).outputs([None, ONE, None, TWO]).to_pylist()
    assert [row and row["letters"] for row in rows] == [None, 3, None, 1]


def test_each_completion_has_the_columns_of_completions() -> None:
    made = task(sampling={"seed": 1, "n": 2}).outputs([TWO, None, ONE])
    assert made.type == task(sampling={"seed": 1, "n": 2}).output_type
    rows = made.to_pylist()
    assert [row and [one["letters"] for one in row["completions"]] for row in rows] == [[1, 2], None, [3]]
    assert [row and row["letters"] for row in rows] == [1, None, 3]


def test_a_store_keeps_columns_of_one_completion_once() -> None:
    """Another job that may have several completions makes the list of them."""
    one, several = task(sampling={"seed": 1}), task(sampling={"seed": 1}, sampling_column="s")
    assert "completions" not in one.stored_type.names
    stored = one.adapted(one.outputs([ONE]), one.stored_type)
    (row,) = several.adapted(stored, several.output_type).to_pylist()
    assert row["completions"] == [{"text": "abc", "finish_reason": "stop", "output_tokens": 1, "letters": 3}]


def test_outputs_without_an_optional_column_get_nulls() -> None:
    """No response of such a job is found for one that needs the column: request keys differ."""
    found = task(sampling={"n": 2}).outputs([TWO])
    (row,) = (
        task(sampling={"n": 2, "seed": 1})
        .adapted(found, task(sampling={"n": 2, "seed": 1}).output_type)
        .to_pylist()
    )
    assert (row["letters"], [one["letters"] for one in row["completions"]]) == (None, [None, None])
