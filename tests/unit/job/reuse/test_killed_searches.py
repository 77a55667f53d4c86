# SPDX-License-Identifier: Apache-2.0
"""Responses that a killed driver had found cost nothing again, also if it was killed while it wrote them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.reuse.row_keys import ranges_for
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.attempts import Attempt

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


@pytest.mark.parametrize(
    ("texts", "answered", "asked", "writes"),
    [
        (["b", "a", "c"], ["a", "b"], [2], {1: 1 + 1, 3: 2 + 3}),  # parts, and files of the search
        (["a", "b", "a", "b"], [], [0, 1, 2, 3], {1: 1, 4: 4}),
    ],
    ids=["parts", "search alone"],
)
def test_what_a_killed_driver_had_found_is_found_again(
    tmp_path: Path, texts: list[str], answered: list[str], asked: list[int], writes: dict[int, int]
) -> None:
    """A search counts once the files of all its ranges are there: else repeated rows had one key."""
    numbers = {3: {}, 4: {2: 1, 3: 1}}[len(texts)]
    for kill in itertools.count():
        root = tmp_path / str(kill)
        if answered:
            Attempt(root, answered).answer([0, 1])
        attempt = Attempt(root, texts, folder=Deadly(f"{root}/out", kill, itertools.count()))
        assert attempt.asked == asked
        try:
            attempt.write_parts()
        except Killed:
            again = Attempt(root, texts, number=1)
            assert (again.asked, again.reuse_plan.repetitions) == (asked, numbers)
        else:
            break
    assert kill == writes[ranges_for(len(texts))]
