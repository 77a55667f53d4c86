# SPDX-License-Identifier: Apache-2.0
"""Finished rows of earlier submissions are skipped, and no other row is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up, look_back
from airflow_provider_raybatch.job.request.keys import Repetitions
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.work import WorkItem, work
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.publishing import failure, part, response
from tests.support.sources import look_at_source
from tests.support.specs import spec

ROWS = 300


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    path = tmp_path_factory.mktemp("source") / "x.jsonl"
    path.write_text("".join(json.dumps({"text": str(number)}) + "\n" for number in range(ROWS)))
    return look_at_source(spec(source=[str(path)], prompt_column="text"))


def left(items: list[WorkItem]) -> list[int]:
    """Return the ordinals of the work items."""
    return [
        item.chunk.ordinal + position
        for item in items
        for position in range(item.chunk.rows)
        if not any(first <= position < stop for first, stop in item.skip)
    ]


def flags(ordinals: Iterable[int]) -> RowMask:
    out = np.zeros(ROWS, np.bool_)
    out[list(ordinals)] = True
    return out


@given(done=st.sets(st.integers(0, ROWS - 1)), rows_per_chunk=st.integers(1, 400))
@example(done=set(range(ROWS)), rows_per_chunk=50)
def test_work_is_exactly_what_is_not_done(source: Source, done: set[int], rows_per_chunk: int) -> None:
    items = work(source, rows_per_chunk, flags(done))
    assert left(items) == sorted(set(range(ROWS)) - done)
    assert all(item.positions for item in items)
    assert left(items) == [item.chunk.ordinal + position for item in items for position in item.positions]


def test_chunk_with_one_missing_row_names_runs_only(source: Source) -> None:
    (item,) = work(source, ROWS, flags(set(range(ROWS)) - {150}))
    assert item.skip == ((0, 150), (151, ROWS))


def test_repetitions_travel_with_their_chunk(source: Source) -> None:
    repetitions = Repetitions(np.array([0, 99, 105]), np.array([1, 2, 3], np.int32))
    items = work(source, 100, flags([]), repetitions)
    found = {item.chunk.ordinal + position: number for item in items for position, number in item.repetitions}
    assert found == {0: 1, 99: 2, 105: 3}


class TestLookBack:
    RUN = "_raybatch/parts/task/run"

    def test_only_good_rows_of_all_submissions_are_done(self, tmp_path: Path) -> None:
        disk = LocalFolder(str(tmp_path))
        part(disk, [{}] * 3, [response(), failure(), response()], submission=0)
        part(disk, [{}] * 2, [response(), failure()], ordinals=[1, 5], submission=1)
        earlier = look_back(disk, self.RUN, 10)
        assert np.flatnonzero(earlier.good).tolist() == [0, 1, 2]
        assert earlier.rows == 3
        assert len(earlier.parts) == 2

    def test_a_row_that_fails_each_time_is_given_up(self, tmp_path: Path) -> None:
        disk = LocalFolder(str(tmp_path))
        part(disk, [{}] * 3, [failure(), failure(), response()], submission=0)
        part(disk, [{}] * 2, [failure(), response()], submission=1)
        part(disk, [{}], [failure()], submission=2)
        earlier = look_back(disk, self.RUN, 5)
        assert earlier.failures.tolist() == [3, 0, 0, 0, 0]
        assert np.flatnonzero(earlier.given_up(3)).tolist() == [0]
        assert not earlier.given_up(4).any()

    def test_parts_without_gaps_are_never_opened(self, tmp_path: Path) -> None:
        disk = LocalFolder(str(tmp_path))
        solid = part(disk, [{}] * 4)
        (tmp_path / solid.path).write_bytes(b"x" * solid.bytes)
        assert look_back(disk, self.RUN, 10).rows == 4

    def test_rows_past_a_smaller_limit_do_not_count(self, tmp_path: Path) -> None:
        disk = LocalFolder(str(tmp_path))
        part(disk, [{}] * 4, first=0)
        part(disk, [{}] * 4, first=4)
        earlier = look_back(disk, self.RUN, 3)
        assert np.flatnonzero(earlier.good).tolist() == [0, 1, 2]
        assert [one.first for one in earlier.parts] == [0]


class TestTolerance:
    @pytest.mark.parametrize(
        ("fraction", "rows", "failed", "exceeded"),
        [
            (0.0, 100, 0, False),
            (0.0, 100, 1, True),
            (0.01, 100, 1, False),
            (0.01, 100, 2, True),
            (1.0, 5, 5, False),
            (0.0, 0, 0, False),
            (0.5, 3, 2, True),
            (0.29, 100, 29, False),
            (0.29, 100, 30, True),
        ],
    )
    def test_max_error_fraction_is_exceeded(
        self, fraction: float, rows: int, failed: int, exceeded: bool
    ) -> None:
        assert Tolerance(LimitArguments(max_error_fraction=fraction), rows).exceeded(failed) is exceeded

    def test_the_stricter_of_fraction_and_max_errors_counts(self) -> None:
        assert Tolerance(LimitArguments(max_error_fraction=0.5, max_errors=3), 100).allowed == 3
        assert Tolerance(LimitArguments(max_error_fraction=0.01, max_errors=3), 100).allowed == 1
        assert Tolerance(LimitArguments(max_errors=3), 100).allowed == 3
        assert Tolerance(LimitArguments(), 100).allowed == 0
        with pytest.raises(RaybatchError, match=r"^max_errors: 4 rows failed so far, more than the 3 that"):
            Tolerance(LimitArguments(max_error_fraction=0.5, max_errors=3), 100).during([report(errors=4)])

    def test_a_limit_that_was_not_set_is_not_quoted(self) -> None:
        with pytest.raises(RaybatchError) as caught:
            Tolerance(LimitArguments(), 300).during([report(errors=4)])
        assert str(caught.value).startswith(
            "max_error_fraction: 4 rows failed so far, more than the 0 of 300 rows that may fail where "
            "max_error_fraction is not set"
        )

    def test_a_job_that_fails_everywhere_ends_early(self) -> None:
        tolerance = Tolerance(LimitArguments(max_error_fraction=0.5), 1_000_000)
        tolerance.during([report(written=999, errors=999)])
        tolerance.during([report(written=2000, errors=1800)])
        with pytest.raises(RaybatchError, match="970 of the first 1,000 rows failed, nearly all"):
            tolerance.during([report(written=600, errors=600), report(written=400, errors=370)])

    def test_rows_that_were_given_up_before_count(self) -> None:
        tolerance = Tolerance(LimitArguments(max_errors=100), 1000, given_up=90)
        tolerance.during([report(errors=10)])
        with pytest.raises(RaybatchError, match=r"^max_errors: 11 rows failed so far and 90 in earlier sub"):
            tolerance.during([report(errors=11)])
        with pytest.raises(RaybatchError, match="101 in earlier submissions"):
            Tolerance(LimitArguments(max_errors=100), 1000, given_up=101).during([])

    def test_rows_that_kill_the_engine_are_named_as_such(self) -> None:
        with pytest.raises(RaybatchError, match="1 of 1 failed row killed the engine each time") as caught:
            Tolerance(LimitArguments(), 10).during([report(errors=1, killers=1)])
        assert caught.value.failure_class is FailureClass.POISON_ROW

    def test_each_judgement_names_cause_and_consequence(self, tmp_path: Path) -> None:
        tolerance = Tolerance(LimitArguments(max_error_fraction=0.1), 20)
        disk = LocalFolder(str(tmp_path))
        ledger = [part(disk, [{}] * 20, [failure("parse", "no JSON")] * 3 + [response()] * 17)]
        judgements = [
            (
                lambda: tolerance.before(
                    [(row, RowFailure("template", "column 'x' is null")) for row in (4, 5, 9)], 10
                ),
                "max_error_fraction: 3 of the first 10 rows fail already, more than the 2 of 20 rows that "
                "max_error_fraction=0.1 allows: 3 in step 'template' (row 4: column 'x' is null); mend them "
                "or raise max_error_fraction.",
            ),
            (
                lambda: tolerance.during([report(written=5, errors=3)]),
                "max_error_fraction: 3 rows failed so far, more than the 2 of 20 rows that "
                "max_error_fraction=0.1 allows.",
            ),
            (
                lambda: tolerance.after(add_up(disk, ledger, 20).rows),
                "max_error_fraction: 3 rows failed, more than the 2 of 20 rows that "
                "max_error_fraction=0.1 allows.",
            ),
        ]
        for judge, sentence in judgements:
            with pytest.raises(RaybatchError) as caught:
                judge()
            assert str(caught.value) == sentence
            assert caught.value.failure_class is FailureClass.TOO_MANY_ERRORS

    def test_what_is_allowed_passes(self, tmp_path: Path) -> None:
        disk = LocalFolder(str(tmp_path))
        tolerance = Tolerance(LimitArguments(max_error_fraction=0.5), 4)
        assert tolerance.before([(0, failure()), (1, failure())], 2) is None
        assert tolerance.during([report(written=2, errors=2)]) is None
        # In the second submission one of three succeeded.
        ledger = [
            part(disk, [{}] * 4, [failure()] * 3 + [response()]),
            part(disk, [{}], [response()], ordinals=[1], submission=1),
        ]
        assert tolerance.after(add_up(disk, ledger, 4).rows) is None


def report(**fields: int) -> ReplicaProgress:
    return ReplicaProgress("a", "n", **fields)
