# SPDX-License-Identifier: Apache-2.0
"""How an event stands in the driver's log: a sentence for people, then what followers read, on one line.

A line is ``<sentence> ::raybatch:: <number> <length> <signature> <document>``. `length` counts the bytes of
the sentence. The signature by the job's key covers everything; any other line is plain text. The document is
JSON. Of a line that is too long followers keep the event at its end.
"""

from __future__ import annotations

import re

from airflow_provider_raybatch.contract.control import is_signed, sign
from airflow_provider_raybatch.contract.text import clean, cut_to

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


def write(text: str, document: str, key: str, number: int) -> str:
    """An event as a line, without the line feed.

    :param text: for people. A long one is cut; white space is joined.
    :param document: JSON, which is read back as it is.
    :param number: how many events the driver wrote before; makes a copy of a line worthless.
    """
    # What a follower's reader would replace can't be signed. The line's last marker is the event's own.
    sentence = cut_to(LONGEST_SENTENCE // 4, _COLONS.sub(_WORD[1:], " ".join(clean(text).split())))
    document = document.replace(_WORD, f"\\u003a{_WORD[1:]}")
    header = f"{number} {len(sentence.encode())}"
    return (
        f"{sentence} {MARKER}{header} {sign(key, _PURPOSE, _signed(header, document, sentence))} {document}"
    )


def read(line: str, key: str) -> tuple[int, str] | None:
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
