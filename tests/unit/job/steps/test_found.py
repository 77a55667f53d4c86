# SPDX-License-Identifier: Apache-2.0
"""What the manifest says of answers that were there: rows and tokens of each step, and of all."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest

from .place import GREEDY, Place

ROWS = [{"text": f"text {number} of some words"} for number in range(5)]
DRAFT: dict[str, Any] = {"name": "draft", "prompt": "draft {row.text}"}
JUDGE: dict[str, Any] = {"name": "judge", "prompt": "judge {row.draft_response}"}
OTHER = {**JUDGE, "prompt": "another judge {row.draft_response}"}


def tokens(manifest: BatchManifest, place: Place, step: str) -> tuple[int, int]:
    """Input and output tokens of one step, by the rows of the dataset."""
    rows = place.rows(manifest)
    of_input, of_output = (sum(row[f"{step}_{name}_tokens"] for row in rows) for name in ("input", "output"))
    return of_input, of_output


@pytest.fixture(params=["destination", "store"])
def again(request: pytest.FixtureRequest, place: Place) -> Any:
    """Run steps once more where the answers of the last run are: in its parts, or in the response store."""
    store = str(place.root / "store")

    def run(number: int, steps: list[dict[str, Any]]) -> BatchManifest:
        if request.param == "store":
            place.folder = type(place.folder)(str(place.root / f"out-{number}"))
        return place.job(number, ROWS, steps=steps, sampling=GREEDY, reuse=store)

    return request.param, run


def test_tokens_of_answers_that_were_there_are_saved(place: Place, again: Any) -> None:
    where, run = again
    first = run(0, [DRAFT, JUDGE])
    assert first.tokens_saved == 0
    assert first.tokens_generated == first.tokens.output
    second = run(1, [DRAFT, OTHER])
    drafts, judged = sum(tokens(second, place, "draft")), tokens(second, place, "judge")
    assert [step.tokens_saved for step in second.steps or ()] == [drafts, 0]
    assert second.tokens_saved == drafts
    assert second.tokens_paid == sum(judged)
    assert second.tokens_generated == judged[1]
    assert second.savings is not None
    own = second.savings.reused if where == "store" else second.savings.resumed
    assert own == drafts
    assert second.savings.reused + second.savings.resumed == drafts


def test_a_job_that_finds_all_answers_saves_all_tokens(place: Place, again: Any) -> None:
    where, run = again
    run(0, [DRAFT, JUDGE])
    run(1, [DRAFT, OTHER])
    third = run(2, [DRAFT, JUDGE])
    assert third.tokens_paid == third.tokens_generated == 0
    assert third.tokens_saved == third.tokens.input + third.tokens.output
    assert [step.reused if where == "store" else step.resumed for step in third.steps or ()] == [5, 5]
