# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.events import (
    LONGEST_DOCUMENT,
    MARKER,
    Committed,
    Failed,
    Notice,
    Phase,
    Progress,
    line,
    read_line,
)
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.run_numbers import Tokens
from tests.support.approved import AssertSentences
from tests.support.refused import HOSTILE, unfit_for_logs

KEY = "ab" * 32
URI = "s3://b/out/data/1"
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
    return events.signed_line("", document, KEY, 0)


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


def test_for_people(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda event: event.text())


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
    event = Notice(message="m", at=1767225845.7)  # 2026-01-01T00:04:05.7Z
    assert line(event, KEY, 0).startswith("[00:04:05] m ::raybatch:: ")
    assert Notice(message="m").timed_text() == "m"
