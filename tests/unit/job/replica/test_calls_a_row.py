# SPDX-License-Identifier: Apache-2.0
"""What a row costs its replica does not grow: counted in calls, which a busy machine does not change."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.job.replica import worker
from tests.support.replicas import Place, do, lines

MOST = 295
"""Calls of Python and C functions from a row's file to its part; there are 285 to 290."""


def calls(folder: Path, monkeypatch: pytest.MonkeyPatch, rows: int) -> Counter[Any]:
    """Return the calls of each function in all threads of a replica that does so many rows in one go.

    Of C functions, those of each caller.
    """
    folder.mkdir()
    place = Place(folder, monkeypatch, batch=200)
    monkeypatch.setattr(worker, "_LEAST_PAUSE", 1.0)  # a slow machine asks as seldom as a fast one
    place.source.write_text(lines(*({"id": number, "text": f"text {number}"} for number in range(rows))))
    replica = place.replica(engine="echo", rows_in_flight=256, flush_interval=3600)
    found: Counter[Any] = Counter()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found[frame.f_code] += 1
        if event == "c_call":
            found[frame.f_code, argument.__qualname__] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        do(place, replica)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert place.report.written == rows
    return found


def test_a_row_takes_no_more_calls_than_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 300, 1500
    more = calls(tmp_path / "many", monkeypatch, many)
    more.subtract(calls(tmp_path / "few", monkeypatch, few))
    # Whole ones, since how many rows go together, and so share a call, is a matter of time.
    assert sum(round(count / (many - few)) for count in more.values()) < MOST
