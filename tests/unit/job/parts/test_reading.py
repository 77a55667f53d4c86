# SPDX-License-Identifier: Apache-2.0
"""What is kept of files: the last used ones within a bound."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.parts import reading
from airflow_provider_raybatch.job.parts.reading import RecentReads


def test_the_last_used_files_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_KEPT", 5)
    read: list[str] = []

    def got(name: str, content: bytes | None) -> bytes | None:
        return files.get(name, lambda: [read.append(name), content][1])

    files = RecentReads[bytes](len)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert got(name, b"xx") == b"xx"
    assert read == ["a", "b", "c", "b"]
    assert (got("damaged", None), got("damaged", None)) == (None, None)
    assert (got("large", b"x" * 9), got("large", b"")) == (b"x" * 9,) * 2
    assert read[4:] == ["damaged", "large"]
