# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress


def report(rows: int, tokens: int = 0, name: str = "a", **fields: object) -> ReplicaProgress:
    return ReplicaProgress(replica=name, node="n", rows=rows, output_tokens=tokens, **fields)  # type: ignore[arg-type]  # a test's shorthand


def steady(
    tracker: Tracker, seconds: range, per_second: int, rows: int = 0, *others: ReplicaProgress
) -> Progress:
    """Update each second, with so many rows more of five tokens each; return the last progress."""
    for second in seconds:
        rows += per_second
        reports = [report(rows, 5 * rows, first_request=1.0), *others]
        progress = tracker.update(reports, 0, float(second))
    return progress


def test_rates_are_of_the_last_minute_and_not_of_the_whole_run() -> None:
    tracker = Tracker(total=100_000, resumed=0, now=0.0)
    steady(tracker, range(600), 10)
    progress = steady(tracker, range(600, 690), 100, 6000)
    assert progress.rows_per_second == pytest.approx(100, rel=0.05)
    assert progress.output_tokens_per_second == pytest.approx(500, rel=0.05)
    assert progress.eta_seconds == pytest.approx((100_000 - 15_000) / 100, abs=50)


def waves(
    tracker: Tracker, total: int, slots: int, seconds: float, first: float
) -> list[tuple[float, Progress]]:
    """Simulate an engine that answers `slots` rows every `seconds`, with two updates a second."""
    end = first + seconds * -(-total // slots)
    updates = []
    for tick in range(int(2 * end) + 1):
        now = tick / 2
        rows = min(total, slots * int(max(0.0, now - first) / seconds))
        asked = [report(rows, 9 * rows, first_request=first)] if now >= first else [report(0)]
        updates.append((now, tracker.update(asked, 0, now)))
    return updates


def test_first_wave_does_not_count_as_speed() -> None:
    """The reported case: 15.6 rows/s and 19 s left after the first 8 of 300 rows; it took 290 s."""
    updates = waves(Tracker(300, 0, 0.0), total=300, slots=8, seconds=7.6, first=20.0)
    end = updates[-1][0]
    shown = [(now, one) for now, one in updates if one.eta_seconds is not None and one.done < 300]
    assert shown[0][0] < 20 + 40
    assert all(abs(now + (one.eta_seconds or 0) - end) <= 0.15 * (end - 20) for now, one in shown)
    assert all(abs((one.rows_per_second or 0) - 8 / 7.6) <= 0.15 for _, one in shown)
    # From then on the rate is shown without a gap.
    assert len(shown) == sum(now >= shown[0][0] and one.done < 300 for now, one in updates)


def test_rows_without_a_request_do_not_count_as_speed() -> None:
    """Of 10,000 rows 9,700 are duplicates, reused or resumed: they are done, but predict no speed."""
    updates = waves(Tracker(10_000, 9_700, 0.0), total=300, slots=8, seconds=7.6, first=20.0)
    shown = [(now, one) for now, one in updates if one.rows_per_second is not None]
    assert all(abs((one.rows_per_second or 0) - 8 / 7.6) <= 0.15 for _, one in shown)
    now, one = shown[0]
    assert one.done >= 9_700
    assert abs(now + (one.eta_seconds or 0) - updates[-1][0]) < 45


def test_a_rate_that_is_not_steady_is_not_shown() -> None:
    tracker = Tracker(100_000, 0, 0.0)
    assert steady(tracker, range(30), 100).rows_per_second is not None
    slower = steady(tracker, range(30, 60), 10, 3000)  # as when long prompts begin
    assert slower.rows_per_second is None
    assert steady(tracker, range(60, 130), 10, 3300).rows_per_second == pytest.approx(10, abs=1)
    assert tracker.update([report(4000, first_request=1.0)], 0, 400.0).rows_per_second is None


def test_unwritten_rows_of_a_dead_process_are_not_done() -> None:
    tracker = Tracker(1000, 0, 0.0)
    assert steady(tracker, range(29), 10).done == 290
    dead = report(290, written=200, state="ended", first_request=1.0)
    progress = tracker.update([dead, report(0, name="b")], 0, 30.0)
    assert progress.done == 200
    progress = steady(tracker, range(31, 60), 10, 0, dead)
    assert progress.rows_per_second == pytest.approx(10, abs=1)


def test_resumed_rows_are_done_but_not_fast() -> None:
    tracker = Tracker(100, 40, 0.0)
    progress = tracker.update([], 0, 1.0)
    assert (progress.done, progress.total, progress.resumed, progress.rows_per_second) == (40, 100, 40, None)
    assert tracker.update([report(60)], 0, 2.0).eta_seconds == 0.0


def test_replicas_are_added_up_to_no_more_than_all_rows() -> None:
    progress = Tracker(10, 0, 0.0).update([report(8, errors=1), report(7, name="b", errors=2)], 0, 1.0)
    assert (progress.done, progress.errors) == (10, 3)


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


@pytest.mark.parametrize("field", ["loaded", "tokens_in_flight"])
def test_engine_that_loads_or_generates_moves(field: str) -> None:
    tracker = Tracker(100, 0, 0.0)
    for now, value, changed in ((1.0, 0, 1.0), (2.0, 40, 2.0), (3.0, 40, 2.0), (4.0, 41, 4.0)):
        tracker.update([report(0, **{field: value})], 0, now)
        assert tracker.last_change == changed


def test_answers_of_steps_are_counted_before_any_row_is_done() -> None:
    tracker = Tracker(100, 0, 0.0, answered={"draft": 20, "repair": 0})
    first = [report(0, answered={0: 8}), report(0, name="b", answered={0: 2, 1: 1})]
    progress = tracker.update(first, 0, 1.0)
    assert progress.answered == {"draft": 30, "repair": 1}
    assert progress.text() == "0 of 100 rows (0.0 %), answered: draft 30 -> repair 1"
    lost = [report(90, answered={0: 95})]  # rows of a replica that another one asked again
    assert tracker.update(lost, 0, 2.0).answered["draft"] == 100
