# SPDX-License-Identifier: Apache-2.0
"""Of a step's several completions, good ones come first, and one that is good is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_raybatch.job.row import Completion, Response, RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from tests.support.specs import spec

GOOD, OTHER = Completion("a", "stop", 1), Completion("b", "stop", 2)
CUT = Completion("c", "length", 3)


def checked(*completions: Completion, **fields: Any) -> Any:
    step = {"name": "draft", "prompt": "{row.topic}", "sampling": {"n": 3}, "on_truncated": "error", **fields}
    (draft,) = spec(steps=[step]).step_specs()
    return task_of(draft).check(Response(completions, input_tokens=5), {})


def test_good_ones_come_first_and_others_say_why() -> None:
    made = checked(CUT, GOOD, OTHER)
    assert [one.text for one in made.completions] == ["a", "b", "c"]
    assert [bool(one.extra.get("rejected")) for one in made.completions] == [False, False, True]


def test_a_row_without_a_good_one_fails_with_all_its_tokens() -> None:
    failed = checked(CUT, replace(CUT, output_tokens=4))
    assert isinstance(failed, RowFailure)
    assert (failed.step, failed.input_tokens, failed.output_tokens) == ("length", 5, 7)
    assert len(checked(CUT, CUT, on_rejected="continue").completions) == 2


def test_one_that_the_engine_gave_up_fails_its_row() -> None:
    """Else it would be stored, and never asked again."""
    for completions in (
        (replace(GOOD, finish_reason="abort"), OTHER),
        (OTHER, replace(GOOD, finish_reason="error")),
    ):
        failed = checked(*completions, on_rejected="continue")
        assert isinstance(failed, RowFailure)
        assert (failed.step, failed.output_tokens) == ("engine", 3)
