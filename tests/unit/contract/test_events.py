# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract import event_line
from airflow_provider_raybatch.contract.event_line import LONGEST_DOCUMENT, MARKER
from airflow_provider_raybatch.contract.events import (
    Committed,
    Failed,
    Notice,
    Phase,
    Progress,
    line,
    read_line,
)
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import Summary, Tokens
from tests.support.refused import HOSTILE, unfit_for_logs

KEY = "ab" * 32
URI = "s3://b/out/data/1"
MANIFEST = "manifest s3://b/out/manifests/1.json"
SUMMARY = Summary(
    uri=URI,
    manifest_uri="s3://b/out/manifests/1.json",
    format="parquet",
    rows=1200,
    errors=3,
    tokens=Tokens(input=10, cached=2, output=5),
)
EVENTS: list[Any] = [
    Phase(phase="waiting", message='waiting for "2" nodes\nand more'),
    Notice(level="warning", message="ü"),
    Progress(done=5, total=10, rows_per_second=1.5, eta_seconds=3.0),
    Failed(failure_class=FailureClass.POISON_ROW, message="x"),
    Committed(summary=SUMMARY, reused=True),
]


def committed(**fields: Any) -> Committed:
    return Committed(summary=SUMMARY.model_copy(update=fields))


def signed(document: str) -> str:
    return event_line.write("", document, KEY, 0)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event.event))
def test_an_event_comes_back_from_its_line(event: Any) -> None:
    text = line(event, KEY, 7)
    assert "\n" not in text
    assert KEY not in text
    assert text.startswith(" ".join(event.text().split()))  # for people who read the driver's own log
    assert read_line(text, KEY) == (7, event)
    # Other output before the event may lack its line feed.
    for before in ("(pid=12) ", MARKER, f"{MARKER}0 {'0' * 32} {{}}"):
        assert read_line(before + text, KEY) == (7, event)
    assert read_line(text, "cd" * 32) is None
    assert read_line(text, None) is None


@pytest.mark.parametrize(
    "message",
    [
        HOSTILE,
        HOSTILE * 10_000,
        "日\n" * 100_000,
        '"\t' * 100_000,
        f"a row said {MARKER}0 {'0' * 32} {{}}",
        MARKER,
    ],
    ids=["hostile", "much of it", "wide", "escaped", "a forged event", "a marker"],
)
def test_any_message_makes_an_event(message: str) -> None:
    """Also a message with the text of a row, a file's name or an answer of a server in it."""
    for event in (
        Notice(message=message),
        Phase(phase="waiting", message=message),
        Failed(failure_class=FailureClass.STORAGE, message=message),
    ):
        text = line(event, KEY, 3)
        found = read_line(f"{HOSTILE} {MARKER}{text}", KEY)
        assert found == (3, event)
        assert unfit_for_logs(event.message) == []
        assert text.count(MARKER) == 1
        assert len(text.encode()) <= LONGEST_DOCUMENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some other line",
        "::raybatch:",
        MARKER,
        MARKER + "{",
        MARKER + "0 ",
        MARKER + "0  {}",
        MARKER + "é é é",
        signed('{"event":"unheard-of"}'),
        signed('{"event":"phase","phase":"x","message":"m","new_field":1}'),
        signed("{"),
    ],
)
def test_other_lines_are_not_events(text: str) -> None:
    assert read_line(text, KEY) is None


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            Progress(done=1500, total=3000, rows_per_second=12.34, output_tokens_per_second=1234.5),
            "1,500 of 3,000 rows (50.0 %), 12.3 rows/s, 1,234 tokens/s",
        ),
        (
            Progress(done=1, total=3, errors=1, eta_seconds=3725.0),
            "1 of 3 rows (33.3 %), 1 failed, about 1 h 2 min left",
        ),
        (Progress(done=7, total=700, rows_per_second=0.0125), "7 of 700 rows (1.0 %), 0.013 rows/s"),
        (Progress(done=0, total=0, eta_seconds=59.6), "0 of 0 rows, about 1 min 0 s left"),
        (Progress(done=0, total=1, eta_seconds=5), "0 of 1 row (0.0 %), about 5 s left"),
        (Progress(done=3, total=3, eta_seconds=0), "3 of 3 rows (100.0 %)"),
        (
            Progress(done=1, total=2, eta_seconds=9, cost=1.234, expected_cost=4.5, currency="EUR"),
            "1 of 2 rows (50.0 %), about 9 s left, cost 1.23 EUR, about 4.50 at the end",
        ),
        (
            Progress(done=2, total=2, cost=0.0042, expected_cost=0.0042, currency="USD"),
            "2 of 2 rows (100.0 %), cost 0.0042 USD",
        ),
        (Progress(done=1, total=2, cost=0.0, expected_cost=0.0, currency="USD"), "1 of 2 rows (50.0 %)"),
        (EVENTS[1], "ü"),
        (EVENTS[3], "poison_row: x"),
        (EVENTS[4], f"1,200 of 1,203 rows found, committed earlier at {URI} (3 failed); {MANIFEST}"),
        (
            committed(tokens_paid=1, tokens_saved=1234),
            f"1,200 of 1,203 rows committed at {URI} (3 failed); 1 token paid, 1,234 saved; {MANIFEST}",
        ),
        (
            committed(unanswered=2),
            f"1,200 of 1,203 rows committed at {URI} (1 failed, 2 not asked before the batch ended); "
            f"{MANIFEST}",
        ),
        (
            committed(tokens_paid=5000, gpu_seconds=1234.5),
            f"1,200 of 1,203 rows committed at {URI} (3 failed); 5,000 tokens paid, 0 saved, 1,234 GPU "
            f"seconds; {MANIFEST}",
        ),
    ],
)
def test_for_people(event: Any, text: str) -> None:
    assert event.text() == text


def test_which_failures_a_retry_can_mend() -> None:
    final = {failure for failure in FailureClass if not failure.retryable}
    assert final == {
        FailureClass.USER_ERROR,
        FailureClass.UNSCHEDULABLE,
        FailureClass.TOO_MANY_ERRORS,
        FailureClass.SUPERSEDED,
        FailureClass.LIMIT_REACHED,
        FailureClass.POISON_ROW,
    }


def test_a_line_begins_with_the_drivers_time() -> None:
    """Many lines of a job come with one poll, whose time is another."""
    at = 1767225845.7  # 2026-01-01T00:04:05.7Z
    event = Notice(message="m", at=at)
    assert (event.timed_text(), Notice(message="m").timed_text()) == ("[00:04:05] m", "m")
    assert line(event, KEY, 0).startswith("[00:04:05] m ::raybatch:: ")
    found = read_line(line(event, KEY, 0), KEY)
    assert found is not None
    assert found.event == event
