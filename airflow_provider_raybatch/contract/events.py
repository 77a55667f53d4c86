# SPDX-License-Identifier: Apache-2.0
"""What a running job says about itself: events, each a line in the driver's log.

A line is ``<sentence> ::raybatch:: <number> <length> <signature> <document>``. `length` counts the bytes of
the sentence. The signature by the job's key covers everything; any other line is plain text. The document is
JSON. Of a line that is too long followers keep the event at its end.
"""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from airflow_provider_raybatch.contract.base import ContractModel, cleaned, in_words
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.contract.preview import PlanReport, Preview, PreviewRow, RowAnswer
from airflow_provider_raybatch.contract.submission import is_signed, sign
from airflow_provider_raybatch.contract.text import clean, count_of, cut_to, money_of

MARKER = "::raybatch:: "
LONGEST_DOCUMENT = 64 * 1024
"""Bytes from an event's marker to the end of its line, at most."""
LONGEST_SENTENCE = 16 * 1024
"""Bytes of its sentence, at most."""

_WORD = MARKER.strip()
_COLONS = re.compile(f":+{_WORD[1:]}")
_PURPOSE = "line"
"""Of the signature."""
_HEADER = re.compile(rb"[0-9]{1,18} ([0-9]{1,5}) [0-9a-f]{32} ")


def signed_line(text: str, document: str, key: str, number: int) -> str:
    """An event as a line, without the line feed.

    :param text: for people. A long one is cut; white space is joined.
    :param document: JSON, which is read back as it is.
    :param number: how many events the driver wrote before; makes a copy of a line worthless.
    """
    # What a follower's reader would replace can't be signed. The line's last marker is the event's own.
    sentence = cut_to(_COLONS.sub(_WORD[1:], " ".join(clean(text).split())), LONGEST_SENTENCE // 4)
    document = document.replace(_WORD, f"\\u003a{_WORD[1:]}")
    header = f"{number} {len(sentence.encode())}"
    return (
        f"{sentence} {MARKER}{header} {sign(key, _PURPOSE, _signed(header, document, sentence))} {document}"
    )


def signed_document(line: str, key: str) -> tuple[int, str] | None:
    """Number and document of the event in a line, ``None`` if the key has signed none."""
    # Of the last marker alone: output before the event may lack its line feed, and have markers.
    before, marker, rest = line.rpartition(MARKER)
    number, length, signature, document, *_ = [*rest.split(" ", 3), "", "", ""]
    sentence = _end(before, length)
    if not marker or sentence is None or not (number.isascii() and number.isdecimal()):
        return None
    is_whole = is_signed(key, _PURPOSE, _signed(f"{number} {length}", document, sentence), signature)
    return (int(number), document) if is_whole else None


def start_of_event(line: bytes) -> int | None:
    """Where the last event of a line begins, its sentence included; ``None`` if it is none or too long."""
    at = line.rfind(MARKER.encode())
    if at < max(0, len(line) - LONGEST_DOCUMENT):
        return None
    header = _HEADER.match(line, at + len(MARKER))
    length = int(header[1]) + 1 if header else 0
    return at - length if length <= min(at, LONGEST_SENTENCE + 1) else at


def _signed(header: str, document: str, sentence: str) -> str:
    return f"{header} {document}\n{sentence}"


def _end(text: str, length: str) -> str | None:
    """The sentence of `length` bytes at the end of what stands before the marker."""
    content = text.encode(errors="replace")
    if not (length.isascii() and length.isdecimal()) or len(length) > 5 or not content.endswith(b" "):
        return None
    end = len(content) - 1
    start = end - int(length)
    return content[start:end].decode(errors="replace") if start >= 0 else None


Message = Annotated[str, cleaned(4_000)]
"""Text for people, from whatever source."""


class _Event(ContractModel):
    at: float | None = None
    """Epoch seconds at which the driver wrote it."""

    def text(self) -> str:
        """For people."""
        raise NotImplementedError

    def timed_text(self) -> str:
        """For people, behind the driver's time in UTC: a follower writes lines when it polls."""
        if self.at is None:
            return self.text()
        return f"[{datetime.datetime.fromtimestamp(self.at, datetime.timezone.utc):%H:%M:%S}] {self.text()}"


class _Sentence(_Event):
    message: Message

    def text(self) -> str:
        return self.message


class Phase(_Sentence):
    """The job entered a phase: ``preflight``, ``waiting``, ``starting``, ``committing``."""

    event: Literal["phase"] = "phase"
    phase: str


class Notice(_Sentence):
    """Something worth knowing that is not a failure; `level` ``warning`` or ``info``."""

    event: Literal["notice"] = "notice"
    level: Literal["info", "warning"] = "info"


class Progress(_Event):
    """How far the job is.

    :param total: rows of the input.
    :param rows_per_second: rows that finished in this job, over a minute; ``None`` unless steady.
    :param output_tokens_per_second: likewise.
    :param eta_seconds: ``None`` unless a rate is known.
    :param kept: rows with an answer on disk, which the job's end can't lose.
    :param cost: of the GPUs held so far, in `currency`, and `expected_cost` at the end; ``None`` without a
        price.
    :param answered: of each step before the last one, rows with its answer; ``None`` where one question
        is asked.
    """

    event: Literal["progress"] = "progress"
    done: int
    total: int
    errors: int = 0
    resumed: int = 0
    rows_per_second: float | None = None
    output_tokens_per_second: float | None = None
    eta_seconds: float | None = None
    kept: int | None = None
    cost: float | None = None
    expected_cost: float | None = None
    currency: str | None = None
    answered: dict[str, int] | None = None

    def text(self) -> str:
        """For people."""
        share = f" ({100 * self.done / self.total:.1f} %)" if self.total else ""
        errors = f", {self.errors:,} failed" if self.errors else ""
        left = None if 0 < self.total <= self.done else self.eta_seconds
        eta = f", about {in_words(left)} left" if left is not None else ""
        rate, tokens = self.rows_per_second, self.output_tokens_per_second
        rates = "" if rate is None else f", {rate:,.{1 if rate >= 1 else 3}f} rows/s"
        rates += "" if not tokens else f", {tokens:,.0f} tokens/s"
        done = f"{self.done:,} of {count_of(self.total, 'row')}{share}"
        return f"{done}{errors}{self._steps()}{rates}{eta}{self._money()}"

    def _steps(self) -> str:
        found = " -> ".join(f"{name} {rows:,}" for name, rows in (self.answered or {}).items())
        return f", answered: {found}" if found else ""

    def _money(self) -> str:
        if not self.cost:
            return ""
        end = self.expected_cost
        is_more = end is not None and self.done < self.total and end > self.cost
        about = f", about {money_of(end, None)} at the end" if end is not None and is_more else ""
        return f", cost {money_of(self.cost, self.currency)}{about}"


class Failed(_Event):
    """The job ended badly; the last event."""

    event: Literal["failed"] = "failed"
    failure_class: FailureClass
    message: Message

    def text(self) -> str:
        """For people."""
        return f"{self.failure_class.value}: {self.message}"


class Committed(_Event):
    """The dataset stands; the last event.

    :param reused: whether an earlier submission had committed it already.
    """

    event: Literal["committed"] = "committed"
    summary: Summary
    reused: bool = False

    def text(self) -> str:
        """For people."""
        how = "found, committed earlier" if self.reused else "committed"
        rows, errors, unanswered = self.summary.rows, self.summary.errors, self.summary.unanswered
        left = f", {unanswered:,} not asked before the batch ended" if unanswered else ""
        failed = f"{errors - unanswered:,} failed{left}"
        return (
            f"{rows:,} of {count_of(rows + errors, 'row')} {how} at {self.summary.uri} ({failed})"
            f"{self._cost()}; manifest {self.summary.manifest_uri}"
        )

    def _cost(self) -> str:
        one = self.summary
        gpus = f", {one.gpu_seconds:,.0f} GPU seconds" if one.gpu_seconds else ""
        cost = f", {money_of(one.cost, one.currency)}" if one.cost else ""
        return f"; {count_of(one.tokens_paid, 'token')} paid, {one.tokens_saved:,} saved{gpus}{cost}"


class RowPreviewed(_Event):
    """A row of a preview."""

    event: Literal["row_previewed"] = "row_previewed"
    row: PreviewRow

    def text(self) -> str:
        """For people."""
        return f"row {self.row.ordinal:,}: {self.row.failure or 'can be asked'}"


class RowAnswered(_Event):
    """The engine's answer to a row of a preview, which was reported before."""

    event: Literal["row_answered"] = "row_answered"
    answer: RowAnswer

    def text(self) -> str:
        """For people."""
        return f"row {self.answer.ordinal:,}: {self.answer.failure or 'has an answer'}"


class Previewed(_Event):
    """All rows of a preview were reported; the last event."""

    event: Literal["previewed"] = "previewed"
    preview: Preview

    def text(self) -> str:
        """For people."""
        return f"{count_of(self.preview.rows_shown, 'row')} shown; nothing was written"


class Planned(_Event):
    """The sizes of a job are known; the last event of a preview job."""

    event: Literal["planned"] = "planned"
    report: PlanReport

    def text(self) -> str:
        """For people."""
        return f"{count_of(self.report.rows or 0, 'row')} planned; nothing was written"


Event = Phase | Notice | Progress | Failed | Committed | RowPreviewed | RowAnswered | Previewed | Planned
JobEvent = Annotated[Event, Field(discriminator="event")]
_ADAPTER: TypeAdapter[Event] = TypeAdapter(JobEvent)


class Signed(NamedTuple):
    """An event that this job's driver has written; `number` counts its events from 0."""

    number: int
    event: Event


def line(event: Event, key: str, number: int) -> str:
    """`event` as a log line, without the line feed: a sentence for people, then what is signed.

    :param number: how many events the driver wrote before; makes a copy of a line worthless.
    """
    return signed_line(event.timed_text(), event.model_dump_json(exclude_none=True), key, number)


def read_line(text: str, key: str | None) -> Signed | None:
    """The event in a log line; ``None`` for any other line, also one whose document is not an event.

    :param key: of the job; without one, no line is an event.
    """
    found = None if key is None else signed_document(text, key)
    if found is None:
        return None
    try:
        number, document = found
        return Signed(number, _ADAPTER.validate_json(document))
    except ValueError:
        return None
