# SPDX-License-Identifier: Apache-2.0
"""The end of a driver's log as lines: each of bearable length, whatever the driver writes."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_raybatch.contract.events import LONGEST_DOCUMENT, start_of_event
from airflow_provider_raybatch.contract.text import count_of, storable

LONGEST_LINE = 16 * 1024
"""Bytes of a line that are kept."""


@dataclass(frozen=True)
class LogTail:
    """The last complete lines of a log.

    :param asked: how many lines the cluster was asked for in the end.
    :param limited: whether that is less than was wanted, since that many have too many bytes. If even the
        last line has, there are none.
    """

    lines: list[str]
    asked: int
    limited: bool = False


def whole_lines(content: bytes, *, last_is_whole: bool) -> list[str]:
    """`content` as lines. A last line without a line feed is still being written, unless `last_is_whole`.

    Of a progress bar, which overwrites itself by carriage returns, the last state is kept. A line of more
    than 16 KiB is cut; an event of the job at its end stays whole.
    """
    *lines, last = content.split(b"\n")
    if last and last_is_whole:
        lines.append(last)
    return [_text(line) for line in lines]


def fewer_lines(asked: int, received: bytes) -> int:
    """How many lines to ask for, 1 at least, after an answer that began with `received`."""
    if b"\n" in received[len(received) // 2 :]:
        return max(1, min(asked, received.count(b"\n")) // 2)
    # One line is too long, and there may be many below it.
    return max(1, asked // (8 if asked > 64 else 2))


def _text(line: bytes) -> str:
    line = line.rstrip(b"\r").rpartition(b"\r")[2]
    if len(line) <= LONGEST_LINE:
        return storable(line.decode(errors="replace"))
    at = start_of_event(line)
    event = b"" if at is None else line[at:]
    left = LONGEST_LINE + LONGEST_DOCUMENT - len(event)
    start = line[: max(0, min(LONGEST_LINE, left, len(line) - len(event)))]
    left_out = len(line) - len(start) - len(event)
    mark = f" [{count_of(left_out, 'more byte')} in this line] " if left_out else ""
    return storable(start.decode(errors="replace") + mark + event.decode(errors="replace"))
