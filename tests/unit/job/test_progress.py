# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import asdict

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.watch.board import Board, ReplicaReport
from airflow_provider_raybatch.job.watch.progress import Tracker


def report(rows: int, tokens: int = 0, name: str = "a", **fields: object) -> ReplicaReport:
    return ReplicaReport(replica=name, node="n", rows=rows, output_tokens=tokens, **fields)  # type: ignore[arg-type]  # a test's shorthand


def test_rates_are_of_the_last_minute_and_not_of_the_whole_run() -> None:
    tracker = Tracker(total=100_000, resumed=0, now=0.0)
    for second in range(1, 601):  # ten minutes at 10 rows a second
        tracker.update([report(10 * second, 50 * second)], 0, float(second))
    for second in range(1, 91):  # then at 100
        progress = tracker.update([report(6000 + 100 * second, 30_000 + 500 * second)], 0, 600.0 + second)
    assert 95 <= progress.rows_per_second <= 105
    assert 475 <= progress.output_tokens_per_second <= 525
    assert progress.eta_seconds is not None
    assert abs(progress.eta_seconds - (100_000 - 15_000) / 100) < 50


def test_the_time_until_engines_are_ready_belongs_to_no_rate() -> None:
    tracker = Tracker(1000, 0, 0.0)
    for second in range(120):
        assert tracker.update([report(0)], 0, float(second)).eta_seconds is None
    progress = tracker.update([report(20)], 0, 121.0)
    assert progress.rows_per_second >= 10


def test_resumed_rows_are_done_but_not_fast() -> None:
    tracker = Tracker(100, 40, 0.0)
    progress = tracker.update([], 0, 1.0)
    assert (progress.done, progress.total, progress.resumed, progress.rows_per_second) == (40, 100, 40, 0.0)
    assert tracker.update([report(60)], 0, 2.0).eta_seconds == 0.0


def test_a_restarted_replica_that_repeats_rows_never_shows_more_than_all() -> None:
    tracker = Tracker(10, 0, 0.0)
    progress = tracker.update([report(8, name="a"), report(7, name="b")], 0, 1.0)
    assert progress.done == 10


def test_errors_of_all_replicas_are_added() -> None:
    progress = Tracker(10, 0, 0.0).update([report(2, errors=1), report(2, name="b", errors=2)], 0, 1.0)
    assert progress.errors == 3


def test_what_counts_as_moving() -> None:
    tracker = Tracker(10, 0, 0.0)
    moves = [
        ([report(0)], 0),
        ([report(0, state="ready")], 0),
        ([report(1, state="ready")], 0),
        ([report(1, tokens=5, state="ready")], 0),
        ([report(1, tokens=5, state="ready")], 1),
        ([report(1, tokens=5, state="ready"), report(0, name="b")], 1),
    ]
    for number, (reports, chunks) in enumerate(moves):
        now = 10.0 * (number + 1)
        tracker.update(reports, chunks, now)
        assert tracker.last_change == now
        tracker.update(reports, chunks, now + 5)
        assert tracker.last_change == now


def test_the_board_keeps_the_last_word_of_each_replica() -> None:
    board = Board()
    board.report({"replica": "a", "rows": 1})
    board.report({"replica": "b", "rows": 1})
    board.report({"replica": "a", "rows": 2})
    assert sorted((one["replica"], one["rows"]) for one in board.snapshot()) == [("a", 2), ("b", 1)]


def test_a_progress_says_how_much_is_left() -> None:
    assert isinstance(Tracker(0, 0, 0.0).update([], 0, 0.0), Progress)


def test_a_process_whose_place_another_has_taken_is_not_waited_for() -> None:
    board = Board()
    for process in ("r-1", "r-2"):
        board.report(asdict(ReplicaReport(process, "n", state="ready")))
    board.begin(0, "r", "r-1")
    board.start("r")
    assert {one["replica"]: one["state"] for one in board.snapshot()} == {"r-1": "ended", "r-2": "ready"}
