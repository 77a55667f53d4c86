# SPDX-License-Identifier: Apache-2.0
"""Responses that a killed driver had found cost nothing again, also if it was killed while it wrote them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.reuse.row_keys import ranges_for
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.attempts import GREEDY, Attempt

pytestmark = pytest.mark.usefixtures("ranges")


class Killed(BaseException):
    """Stands for a SIGKILL."""


@dataclass(frozen=True)
class Deadly(LocalFolder):
    """A disk whose writer is killed before its write number `kill`."""

    kill: int = 0
    numbers: itertools.count[int] = itertools.count()  # noqa: RUF009 - a new one is given each time

    def write(self, path: str, content: bytes) -> None:
        if next(self.numbers) == self.kill:
            raise Killed
        super().write(path, content)


def test_what_a_killed_driver_had_found_is_found_again(tmp_path: Path) -> None:
    for kill in itertools.count():
        root = tmp_path / str(kill)
        Attempt(root, ["a", "b"]).answer([0, 1])
        dying = Deadly(str(root / "out"), kill, itertools.count())
        attempt = Attempt(root, ["b", "a", "c"], folder=dying)
        assert attempt.asked == [2]
        try:
            attempt.write_parts()
        except Killed:
            assert Attempt(root, ["b", "a", "c"], number=1).asked == [2]
        else:
            break
    assert kill == {1: 1 + 1, 3: 2 + 3}[ranges_for(3)]  # parts, and files of the search


def test_a_search_counts_when_all_of_its_files_are_there(tmp_path: Path) -> None:
    """Rows that repeat others are found, though the range that has them is not in the part that is there."""
    texts = ["a", "b", "a", "b"]
    for kill in itertools.count():
        root = tmp_path / str(kill)
        attempt = Attempt(root, texts, folder=Deadly(f"{root}/out", kill, itertools.count()), sampling=GREEDY)
        assert attempt.asked == [0, 1]
        try:
            attempt.write_parts()
        except Killed:
            assert Attempt(root, texts, number=1, sampling=GREEDY).asked == [0, 1]
        else:
            break
    assert kill == ranges_for(len(texts))
