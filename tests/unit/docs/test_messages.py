# SPDX-License-Identifier: Apache-2.0
"""The messages that the troubleshooting page quotes are in the code."""

from __future__ import annotations

import difflib
import functools
import re

import pytest

from ...support.documents import DOCS, Message, messages_of_the_code

PAGE = DOCS / "troubleshooting.md"
ENTRY = re.compile(r"^- `(.+)`\n\n  \S", re.MULTILINE)
messages = functools.cache(messages_of_the_code)
QUOTED = ENTRY.findall(PAGE.read_text(encoding="utf-8"))


def test_every_entry_is_a_message_with_a_remedy() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("- `")]
    assert len(lines) == len(QUOTED) == len(set(QUOTED))
    assert len(QUOTED) >= 40


@pytest.mark.parametrize("quoted", QUOTED)
def test_quoted_message_is_in_the_code(quoted: str) -> None:
    assert any(message.quotes(quoted) for message in messages()), closest(quoted)


def closest(quoted: str) -> str:
    """Return the message that resembles `quoted` most, and where it is written."""
    near = difflib.get_close_matches(quoted, [message.text for message in messages()], n=1, cutoff=0.3)
    places = [message.place for message in messages() if message.text in near]
    return f"no message of the code reads {quoted!r}; the closest is {near} at {places}"


MADE = Message(("Connection ", ", field host: it is empty; name the dashboard's host, or ", "."), "a.py:1")


@pytest.mark.parametrize(
    ("quoted", "found"),
    [
        ("Connection 'x', field host: it is empty; name the dashboard's host, or 'local'.", True),
        ("Connection <id>, field host: it is empty; name the dashboard's host, or <y>.", True),
        ("Connection <id>, field host: it is void; name the dashboard's host, or <y>.", False),
        ("Connection <id>, field host: it is empty; name the dashboard's host", False),
        (f"Connection <id>, field host: it is empty; name the dashboard's host, or {'y' * 99}.", False),
    ],
)
def test_a_message_is_compared_but_for_its_values(quoted: str, found: bool) -> None:
    assert MADE.quotes(quoted) is found
