# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.job.monitor.progress import Tracker
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress


def report(rows: int, tokens: int = 0, name: str = "a", **fields: object) -> ReplicaProgress:
    return ReplicaProgress(replica=name, node="n", rows=rows, output_tokens=tokens, **fields)  # type: ignore[arg-type]  # a test's shorthand


def test_rates_are_of_the_last_minute_and_not_of_the_whole_run() -> None:
    tracker = Tracker(total=100_000, resumed=0, now=0.0)
    for second in range(1, 601):  # ten minutes at 10 rows a second
        tracker.update([report(10 * second, 50 * second)], 0, float(second))
    for second in range(1, 91):  # then at 100
        progress = tracker.update([report(6000 + 100 * second, 30_000 + 500 * second)], 0, 600.0 + second)
    assert progress.rows_per_second is not None
    assert progress.output_tokens_per_second is not None
    assert 95 <= progress.rows_per_second <= 105
    assert 475 <= progress.output_tokens_per_second <= 525
    assert progress.eta_seconds is not None
    assert abs(progress.eta_seconds - (100_000 - 15_000) / 100) < 50


def test_the_time_until_engines_are_ready_belongs_to_no_rate() -> None:
    tracker = Tracker(10_000, 0, 0.0)
    for second in range(120):
        assert tracker.update([report(0)], 0, float(second)).eta_seconds is None
    for second in range(120, 150):
        progress = tracker.update([report(10 * (second - 119), first_request=1.0)], 0, float(second))
    assert progress.rows_per_second == 10.0


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
    rows = 0
    for second in range(30):
        rows += 100
        progress = tracker.update([report(rows, first_request=1.0)], 0, float(second))
    assert progress.rows_per_second is not None
    for second in range(30, 60):  # a third of the speed, as when long prompts begin
        rows += 10
        progress = tracker.update([report(rows, first_request=1.0)], 0, float(second))
    assert progress.rows_per_second is None
    for second in range(60, 130):
        rows += 10
        progress = tracker.update([report(rows, first_request=1.0)], 0, float(second))
    assert progress.rows_per_second is not None
    assert abs(progress.rows_per_second - 10) < 1


def test_a_job_that_stands_still_has_no_speed() -> None:
    tracker = Tracker(100_000, 0, 0.0)
    for second in range(30):
        tracker.update([report(100 * second, first_request=1.0)], 0, float(second))
    assert tracker.update([report(2900, first_request=1.0)], 0, 300.0).rows_per_second is None


def test_unwritten_rows_of_a_dead_process_are_not_done() -> None:
    tracker = Tracker(1000, 0, 0.0)
    for second in range(30):
        progress = tracker.update([report(10 * second, first_request=1.0)], 0, float(second))
    assert progress.done == 290
    dead = report(290, written=200, state="ended", first_request=1.0)
    progress = tracker.update([dead, report(0, name="b")], 0, 30.0)
    assert progress.done == 200
    for second in range(31, 60):
        again = report(10 * (second - 30), name="b", first_request=1.0)
        progress = tracker.update([dead, again], 0, float(second))
    assert progress.rows_per_second is not None
    assert 9 < progress.rows_per_second < 11


def test_resumed_rows_are_done_but_not_fast() -> None:
    tracker = Tracker(100, 40, 0.0)
    progress = tracker.update([], 0, 1.0)
    assert (progress.done, progress.total, progress.resumed, progress.rows_per_second) == (40, 100, 40, None)
    assert tracker.update([report(60)], 0, 2.0).eta_seconds == 0.0


def test_repeated_rows_never_show_more_than_all() -> None:
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


def test_progress_shows_how_much_remains() -> None:
    assert isinstance(Tracker(0, 0, 0.0).update([], 0, 0.0), Progress)


def test_an_engine_that_loads_its_model_moves() -> None:
    tracker = Tracker(100, 0, 0.0)
    for now, loaded, changed in ((1.0, 0, 1.0), (2.0, 0, 1.0), (3.0, 5, 3.0), (4.0, 5, 3.0)):
        tracker.update([report(0, state="starting", loaded=loaded)], 0, now)
        assert tracker.last_change == changed


def test_a_long_response_moves_while_its_tokens_come() -> None:
    tracker = Tracker(100, 0, 0.0)
    for now, tokens, changed in ((1.0, 0, 1.0), (2.0, 40, 2.0), (3.0, 40, 2.0), (4.0, 41, 4.0)):
        tracker.update([report(0, state="ready", tokens_in_flight=tokens)], 0, now)
        assert tracker.last_change == changed
