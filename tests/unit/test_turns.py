# SPDX-License-Identifier: Apache-2.0
"""In eight consecutive commits each test runs, whatever its marks are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.turn import SHARES, TURN, TURNS, of_this_turn, turns_of

ALL = frozenset(range(TURNS))


@dataclass(frozen=True, eq=False)
class Found:
    """A collected test, as far as the selection looks at it."""

    name: str
    marks: tuple[Any, ...] = ()
    path: Path = Path("test_a.py")

    @property
    def nodeid(self) -> str:
        return f"{self.path}::{self.name}"

    def iter_markers(self, name: str) -> Iterator[Any]:
        return (mark.mark for mark in self.marks if mark.mark.name == name)


def turns(*tests: Any) -> list[frozenset[int]]:
    found = turns_of(tests)
    return [found[one] for one in tests]


def test_a_test_without_marks_runs_in_each_turn() -> None:
    assert turns(Found("test_x")) == [ALL]


def test_named_turns_are_those_of_all_marks() -> None:
    one, both = Found("test_x", (pytest.mark.turn(1, 5),)), (pytest.mark.turn(1, 5), pytest.mark.turn(0, 1))
    assert turns(one, Found("test_y", both)) == [frozenset({1, 5}), frozenset({1})]


@pytest.mark.parametrize("share", SHARES)
def test_each_turn_has_one_in_so_many(share: int) -> None:
    marks = (pytest.mark.share(share),)
    functions = [name for name in "abc" for _ in range(16)]
    found = turns(*(Found(f"test_{name}[{number}]", marks) for number, name in enumerate(functions)))
    for now in ALL:
        counts = Counter(name for name, one in zip(functions, found, strict=True) if now in one)
        assert counts == dict.fromkeys("abc", 16 // share)
    assert {len(one) for one in found} == {TURNS // share}


def test_of_two_shares_the_smaller_part_runs() -> None:
    assert len(*turns(Found("test_x", (pytest.mark.share(2), pytest.mark.share(8))))) == 1


def test_single_tests_of_many_modules_are_spread() -> None:
    tests = [Found("test_x", (pytest.mark.share(4),), Path(f"test_{number}.py")) for number in range(80)]
    found = turns(*tests)
    assert all(10 < sum(now in one for one in found) < 30 for now in ALL)


@pytest.mark.parametrize(
    ("marks", "message"),
    [
        ((pytest.mark.turn(TURNS),), "has a number beyond 7"),
        ((pytest.mark.turn(),), "no turn has this test"),
        ((pytest.mark.turn(1), pytest.mark.turn(2)), "no turn has this test"),
        ((pytest.mark.share(3),), "is none of"),
    ],
)
def test_marks_that_hide_a_test_are_refused(marks: tuple[Any, ...], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        turns(Found("test_x", marks))


def test_a_share_of_what_runs_in_one_turn_is_refused() -> None:
    """Of two tests, one would come in the other turns alone."""
    marks = (pytest.mark.turn(0), pytest.mark.share(2))
    with pytest.raises(pytest.UsageError, match="no turn has this test"):
        turns(Found("test_x", marks), Found("test_y", marks))


def test_eight_turns_have_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    for now in range(1000, 1000 + TURNS):
        monkeypatch.setenv(TURN, str(now))
        assert of_this_turn(range(50)) == of_this_turn(range(50), now)
        found += of_this_turn(range(50))
    assert sorted(found) == list(range(50))
