# SPDX-License-Identifier: Apache-2.0
"""A job that publishes nothing reports its failed rows and leaves their dead letters."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.failures.public_reasons import counted, main_reasons
from airflow_provider_raybatch.job.output.dead_letters import with_rows_left
from airflow_provider_raybatch.job.output.journal import SupersededError
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.publishing import failure, part, response

RUN = "_raybatch/parts/task/run"


def test_failures_are_counted_by_step_and_reason() -> None:
    failures = [(row, RowFailure("template", f"column '{'ab'[row % 2]}' is null")) for row in range(3)]
    failures += [(row, RowFailure("tokenize", f"{row} tokens, and 512 fit")) for row in range(3, 1003)]
    failures += [(2000, RowFailure("parse", "no JSON." + "x" * 500))]
    failures += [(3000 + row, RowFailure(f"step {'abc'[row]}", "odd")) for row in range(3)]
    assert counted(failures, shows_rows=True) == (
        "1,000 in step 'tokenize' (row 3: 3 tokens, and 512 fit), 3 in step 'template' (row 0: column 'a' is "
        f"null), 1 in step 'parse' (row 2000: no JSON.{'x' * 89}...), 3 for other reasons"
    )


def test_the_first_sentence_of_the_most_frequent_reason_is_kept() -> None:
    reasons = ["Row 1 is odd.", "It broke\nhere.", "Row 22 is odd. Look at it.", "y" * 500]
    failures = [RowFailure("engine", one) for one in reasons] + [RowFailure("read", "no text")]
    assert main_reasons(failures, shows_rows=True) == {"engine": (2, "Row 1 is odd"), "read": (1, "no text")}
    cut = main_reasons([RowFailure("engine", "y" * 500)], shows_rows=True)
    assert cut == {"engine": (1, f"{'y' * 97}...")}


def job_in(folder: Folder, submission: int = 1) -> Any:
    return SimpleNamespace(
        folder=folder,
        part_folder=f"{RUN}/raybatch-x-{submission}",
        spec=SimpleNamespace(on_clear="reuse", shows_rows=True),
        before=(),
    )


def letters(folder: Folder, submission: int = 1) -> dict[int, dict[str, Any]]:
    """By ordinal."""
    found: dict[int, dict[str, Any]] = {}
    for entry in folder.list(f"dead_letter/raybatch-x-{submission}"):
        for line in folder.read(entry.path).decode().splitlines():
            letter = json.loads(line)
            assert found.setdefault(letter["ordinal"], letter) is letter
    return found


def too_many(failure_class: FailureClass = FailureClass.TOO_MANY_ERRORS) -> RaybatchError:
    return RaybatchError("max_errors: 3 rows failed.", failure_class)


def test_dead_letters_of_all_submissions_are_left(folder: Folder) -> None:
    part(folder, [{"n": 0}, {"n": 1}, {"n": 2}], [response(), failure(), failure()])
    part(folder, [{"n": 1}], [response()], ordinals=[1], submission=1)  # succeeded later
    part(folder, [{"n": 2}], [failure("parse", "no JSON")], ordinals=[2], submission=1)
    part(folder, [{"text": "other columns"}], [failure()], ordinals=[7], submission=1)
    # Of a larger limit: beyond the end of the input.
    part(folder, [{"n": 0}, {"n": 99}], [response(), failure()], ordinals=[0, 99], submission=1)
    extended = with_rows_left(too_many(), job_in(folder), 10)
    assert isinstance(extended, RaybatchError)
    assert extended.failure_class is FailureClass.TOO_MANY_ERRORS
    assert str(extended) == (
        "max_errors: 3 rows failed; 2 of 10 rows are kept, and a clear of the task goes on from there; the "
        "dead letters of 2 failed rows are in "
        f"{folder.uri}/dead_letter/raybatch-x-1: 1 in step 'engine' (row 7: it broke), 1 in step 'parse' "
        "(row 2: no JSON)."
    )
    assert letters(folder) == {
        2: {"ordinal": 2, "step": "parse", "reason": "no JSON", "request": '{"prompt":"p"}', "row": {"n": 2}},
        7: {
            "ordinal": 7,
            "step": "engine",
            "reason": "it broke",
            "request": '{"prompt":"p"}',
            "row": {"text": "other columns"},
        },
    }


@pytest.mark.parametrize(
    ("failure_class", "earlier"),
    [
        (FailureClass.LIMIT_REACHED, set()),
        (FailureClass.ENGINE_DEAD, set()),
        (FailureClass.TOO_MANY_ERRORS, {0}),  # an earlier submission's rows may have been too many
        (FailureClass.POISON_ROW, {0}),
    ],
)
def test_every_end_leaves_the_dead_letters_of_its_own_rows(
    folder: Folder, failure_class: FailureClass, earlier: set[int]
) -> None:
    error = too_many(failure_class)
    part(folder, [{"n": 0}], [failure()], submission=0)
    with_rows_left(error, job_in(folder), 10)
    assert set(letters(folder)) == earlier
    part(folder, [{"n": 3}], [failure()], ordinals=[3], submission=1)
    extended = with_rows_left(error, job_in(folder), 10)
    assert isinstance(extended, RaybatchError)
    assert extended.failure_class is failure_class
    assert set(letters(folder)) == {0, 3}


def test_another_submission_destination_is_left_alone(folder: Folder) -> None:
    part(folder, [{"n": 3}], [failure()], submission=1)
    error = SupersededError("destination: it is another's.")
    assert with_rows_left(error, job_in(folder), 10) is error
    assert not folder.list("dead_letter")


def test_the_error_survives_where_no_letter_can_be_written(disk: LocalFolder) -> None:
    part(disk, [{"n": 3}], [failure()], submission=1)
    disk.write("dead_letter", b"a file in the way")
    error = too_many()
    assert with_rows_left(error, job_in(disk), 10) is error


@pytest.mark.parametrize("failure_class", list(FailureClass))
def test_every_end_says_which_rows_are_kept(folder: Folder, failure_class: FailureClass) -> None:
    error = RaybatchError("It went wrong.", failure_class)
    about_time = {FailureClass.TIMEOUT, FailureClass.LIMIT_REACHED, FailureClass.CANCELLED}
    none_yet = "; no row was finished" if failure_class in about_time else ""
    told = [str(with_rows_left(error, job_in(folder), 1_300))]
    part(folder, [{"n": n} for n in range(1_200)], [response()] * 1_200, submission=0)
    told.append(str(with_rows_left(error, job_in(folder), 1_300)))
    if failure_class is FailureClass.SUPERSEDED:
        assert told == ["It went wrong."] * 2
        return
    what = "the next attempt" if failure_class.retryable else "a clear of the task"
    kept = f"1,200 of 1,300 rows are kept, and {what} goes on from there"
    assert told == [f"It went wrong{none_yet}.", f"It went wrong; {kept}."]
    regenerates = job_in(folder)
    regenerates.spec.on_clear = "regenerate"
    goes_on = ", and the next attempt goes on from there" if failure_class.retryable else ""
    assert str(with_rows_left(error, regenerates, 1_300)).endswith(f"1,200 of 1,300 rows are kept{goes_on}.")
