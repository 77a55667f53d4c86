# SPDX-License-Identifier: Apache-2.0
"""What a death says of the rows that were, had been, or were about to be in the engine."""

from __future__ import annotations

from airflow_provider_raybatch.job.monitor.poison_rows import Suspects, poison


def test_a_chunk_that_waits_for_its_turn_may_have_rows_that_are_written() -> None:
    suspects = Suspects()
    suspects.start("r", "p1")
    assert not suspects.begin(1, "r", "p1").repeated
    suspects.start("r", "p2")
    assert suspects.begin(1, "r", "p2").repeated


def test_deaths_are_forgiven_once_rows_are_finished() -> None:
    suspects = Suspects()
    for number in range(10):
        process = f"p{number}"
        assert suspects.start("r", process) == 0
        suspects.begin(number, "r", process)
        suspects.ask(number, process, (0, 1), tested=False)
        suspects.finished("r")


def test_kills_that_a_row_shared_with_others_do_not_count_against_it() -> None:
    suspects = Suspects()
    suspects.start("r", "together")
    for item in (1, 2):
        suspects.begin(item, "r", "together")
        suspects.ask(item, "together", (0,), tested=False)
    suspects.start("r", "alone 0")
    told = suspects.begin(1, "r", "alone 0")
    suspects.begin(2, "r", "alone 0")
    suspects.end(2, "alone 0")
    kills = 0
    while poison(told, [0]) is None:
        suspects.ask(1, f"alone {kills}", (0,), tested=True)
        kills += 1
        suspects.start("r", f"alone {kills}")
        told = suspects.begin(1, "r", f"alone {kills}")
    assert kills == 4


def test_the_last_words_of_a_process_change_nothing_for_the_next_one() -> None:
    suspects = Suspects()
    suspects.start("r", "p1")
    suspects.begin(1, "r", "p1")
    suspects.ask(1, "p1", (0, 1), tested=False)
    suspects.start("r", "p2")
    suspects.begin(1, "r", "p2")
    suspects.ask(1, "p2", (0,), tested=True)
    suspects.ask(1, "p1", (5,), tested=False)
    suspects.passed(1, "p1")
    suspects.end(1, "p1")
    suspects.start("r", "p3")
    assert suspects.begin(1, "r", "p3").asked == (0,)
