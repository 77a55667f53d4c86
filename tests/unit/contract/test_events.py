# SPDX-License-Identifier: Apache-2.0
"""Events on the driver's log lines: for people, and signed for followers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.models import LONGEST_LINE, whole_lines
from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.events import (
    LONGEST_DOCUMENT,
    LONGEST_SENTENCE,
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
from airflow_provider_raybatch.contract.manifest import Savings, Summary
from airflow_provider_raybatch.contract.run_numbers import LastRun, Tokens
from airflow_provider_raybatch.contract.submission import sign
from tests.support.approved import AssertSentences
from tests.support.refused import HOSTILE, unfit_for_logs

KEY = "ab" * 32
FOLDER = "s3://lake/answers/products"
COMMITTED_SUMMARY = Summary(
    uri=f"{FOLDER}/data/20261127T091615-47e8906a",
    manifest_uri=f"{FOLDER}/manifests/20261127T091615-47e8906a.json",
    dead_letter_uri=f"{FOLDER}/dead_letters/20261127T091615-47e8906a",
    format="parquet",
    rows=3998,
    errors=2,
    main_failure="engine: the prompt is empty",
    tokens=Tokens(input=24000, output=24000),
    tokens_paid=48000,
    tokens_saved=0,
    gpu_seconds=122.5,
    seconds=40.49,
)
PRICED = COMMITTED_SUMMARY.model_copy(
    update={
        "cost": 0.14,
        "currency": "EUR",
        "savings": Savings(reused=5),
        "last_run": LastRun(rows=4000, errors=0, seconds=50.5, created_at="2026-11-26T09:16:15Z"),
    }
)
AT = 1795770975.7
TYPICAL = [
    Phase(phase="preflight", message="checking source, prompt, model, destination and cluster", at=AT),
    Notice(message="first request after 11.3 s (replica 10.3 s)", at=AT),
    Progress(done=3072, total=4000, rows_per_second=145.53, eta_seconds=6.4, kept=3072, at=AT),
    Failed(failure_class=FailureClass.STORAGE, message="The bucket is gone.", at=AT),
    Committed(summary=PRICED, at=AT),
]
LONG = "日" * 3_999 + "."


def sentence_of(text: str) -> str:
    return text.rpartition(MARKER)[0]


@pytest.mark.parametrize("event", TYPICAL, ids=lambda one: one.event)
def test_a_line_begins_with_its_sentence(event: Any) -> None:
    text = line(event, KEY, 12)
    assert text.startswith(f"{event.timed_text()} {MARKER}12 ")
    assert read_line(text, KEY) == (12, event)


def altered(text: str) -> dict[str, str]:
    sentence, header = sentence_of(text), text.rpartition(MARKER)[2]
    number, length, signature, body = header.split(" ")
    rest = f"{signature} {body}"
    return {
        "another sentence": text.replace("3,072", "4,000"),
        "a shorter sentence": f"{sentence}{MARKER}{number} {int(length) - 1} {rest}",
        "a longer sentence": f"x{sentence}{MARKER}{number} {int(length) + 1} {rest}",
        "more before the marker": f"{sentence}x {MARKER}{header}",
        "no sentence": f"{MARKER}{header}",
        "another number": f"{sentence}{MARKER}{int(number) + 1} {length} {rest}",
        "a zero before the number": f"{sentence}{MARKER}0{number} {length} {rest}",
        "a zero before the length": f"{sentence}{MARKER}{number} 0{length} {rest}",
        "another document": f"{sentence}{MARKER}{number} {length} {signature} {body[:-1]}",
        "text behind it": f"{text} and more",
        "no length": f"{sentence}{MARKER}{number} {rest}",
        "a length of other digits": f"{sentence}{MARKER}{number} ²² {rest}",
        "a huge length": f"{sentence}{MARKER}{number} {'9' * 5000} {rest}",
        "a huge number": f"{sentence}{MARKER}{'9' * 5000} {length} {rest}",
        "a negative length": f"{sentence}{MARKER}{number} -{length} {rest}",
        "a marker behind it": f"{text} {MARKER}",
    }


ALTERED = altered(line(TYPICAL[2], KEY, 12))


@pytest.mark.parametrize("text", ALTERED.values(), ids=ALTERED)
def test_what_was_altered_is_text(text: str) -> None:
    assert read_line(text, KEY) is None
    (kept,) = whole_lines(f"{text}\n".encode(), last_is_whole=False)
    assert kept == text


def test_signed_bodies_that_are_no_documents() -> None:
    for body in ("", "AAAA", "日", "{", "null"):
        signature = sign(KEY, "line", f"5 1 {body}\ns")
        assert read_line(f"s {MARKER}5 1 {signature} {body}", KEY) is None


@pytest.mark.parametrize(
    "message",
    [LONG, "a\tb \n c\u00a0\u2028d", f"::{MARKER}0 0 x", f"{MARKER}{MARKER}", "\x1b[31mred\0\ud800", ""],
    ids=["long", "white space", "a marker after colons", "markers", "controls", "empty"],
)
@pytest.mark.parametrize(
    "before",
    [b"", b"x" * 300_000, b"\xe6\x97", MARKER.encode() * 9, b"50 %\r"],
    ids=lambda one: str(len(one)),
)
def test_any_sentence_comes_back_from_a_log(message: str, before: bytes) -> None:
    """Through bytes, and the cut of lines that are too long, behind output without a line feed."""
    event = Failed(failure_class=FailureClass.INTERNAL, message=message, at=AT)
    content = before + line(event, KEY, 3).encode() + b"\n"
    (text,) = whole_lines(content, last_is_whole=False)
    assert read_line(text, KEY) == (3, event)
    assert len(text.encode()) <= LONGEST_LINE + LONGEST_DOCUMENT + 50


def test_a_long_text_is_cut_and_its_document_is_not() -> None:
    document = json.dumps({"text": LONG * 3})
    text = events.signed_line(LONG * 3, document, KEY, 0)
    assert len(sentence_of(text).encode()) <= LONGEST_SENTENCE
    assert events.signed_document(text, KEY) == (0, document)


@pytest.mark.parametrize("length", ["16384", "16385", "99999", "0"])
def test_forged_lengths_keep_no_more_than_a_long_line(length: str) -> None:
    forged = f"{'x' * 300_000} {MARKER}0 {length} {'0' * 32} {'y' * (LONGEST_DOCUMENT - 100)}"
    (text,) = whole_lines(f"{forged}\n".encode(), last_is_whole=False)
    assert len(text.encode()) <= LONGEST_LINE + LONGEST_DOCUMENT + 50
    assert read_line(text, KEY) is None


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
