# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.jobs_api.models import LONGEST_LINE, whole_lines
from airflow_provider_raybatch.contract.events import LONGEST_DOCUMENT, MARKER, Failed, line, read_line
from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.committed import COMMITTED, KEY

LONGEST_EVENT = line(Failed(failure_class=FailureClass.STORAGE, message='"日\n' * 10_000), KEY, 5)


@pytest.mark.parametrize(
    ("text", "ended", "lines"),
    [
        ("", False, []),
        ("a\nb\n", False, ["a", "b"]),
        ("a\nhal", False, ["a"]),
        ("a\nhal", True, ["a", "hal"]),
        ("a\r\nb\r\n", False, ["a", "b"]),
        (" 1%\r 50%\r100%\n", False, ["100%"]),
        ("\n\n", False, ["", ""]),
    ],
)
def test_only_whole_lines_are_shown(text, ended, lines):
    assert whole_lines(text.encode(), last_is_whole=ended) == lines


def test_bytes_that_are_no_text_are_shown_as_such():
    assert whole_lines(b"a\xff\x00b\n", last_is_whole=False) == ["a\ufffd\ufffdb"]


def test_long_line_is_cut_with_a_mark():
    longest = b"x" * LONGEST_LINE
    content = longest + b"\n" + longest + b"yyy\n" + "日".encode() * LONGEST_LINE + b"\nend\n"
    whole, cut, wide, end = whole_lines(content, last_is_whole=False)
    assert (whole, cut, end) == (longest.decode(), f"{longest.decode()} [3 more bytes in this line] ", "end")
    assert wide.endswith(f" [{2 * LONGEST_LINE:,} more bytes in this line] ")


@pytest.mark.parametrize("event", [COMMITTED, LONGEST_EVENT], ids=["committed", "longest"])
@pytest.mark.parametrize("before", ["", "x", "x" * LONGEST_LINE, "x" * 300_000, MARKER * 20_000])
def test_event_stays_whole_in_a_line_of_any_length(event, before):
    """A progress bar or a row's text may stand before it, without a line feed."""
    (text,) = whole_lines(f"{before}{event}\n".encode(), last_is_whole=False)
    assert read_line(text, KEY) == read_line(event, KEY)
    assert read_line(event, KEY) is not None
    assert len(text.encode()) <= LONGEST_LINE + LONGEST_DOCUMENT + 50
