# SPDX-License-Identifier: Apache-2.0
"""What a row costs its replica does not grow: counted in calls, which a busy machine does not change."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.replicas import Place, do, lines

MOST = 275
"""Calls of Python and C functions from a row's file to its part; there are 261 on Python 3.11."""


def calls(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> int:
    """Return the calls in all threads of a replica that does so many rows in one go."""
    folder.mkdir()
    place = Place(folder, monkeypatch, batch=200)
    place.source.write_text(lines(*({"id": number, "text": f"text {number}"} for number in range(rows))))
    replica = place.replica(engine="echo", rows_in_flight=256, flush_interval=3600)
    found: Counter[str] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        found[event] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        do(place, replica)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert place.report.written == rows
    return found["call"] + found["c_call"]


def test_a_row_takes_no_more_calls_than_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 300, 1500
    more = calls(tmp_path / "many", monkeypatch, many) - calls(tmp_path / "few", monkeypatch, few)
    assert more / (many - few) < MOST
