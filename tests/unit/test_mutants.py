# SPDX-License-Identifier: Apache-2.0
"""The list of mutants fits the code and the tests; `make mutants` shows whether tests notice them."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from ..mutants.listed import MUTANTS
from ..mutants.mutant import PACKAGE, TESTS, Mutant

ROOT = Path(__file__).parents[2]


def test_there_are_enough_of_them() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))
    assert len([mutant for mutant in MUTANTS if not mutant.equivalent]) >= 40


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_can_be_applied_and_has_tests(mutant: Mutant) -> None:
    mutant.applied_to((ROOT / PACKAGE / mutant.file).read_text())
    assert mutant.loses
    assert mutant.tests
    for test in mutant.tests:
        path, *names = test.split("::")
        place = ROOT / TESTS / path
        assert place.is_dir() or names_in(place) >= {"::".join(names)}, test


@functools.cache
def names_in(file: Path) -> set[str]:
    """Return the names in a test file that pytest can select."""
    found = {""}
    for one in ast.parse(file.read_text()).body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(one.name)
        if isinstance(one, ast.ClassDef):
            inner = (
                member for member in one.body if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
            )
            found.update(f"{one.name}::{member.name}" for member in inner)
    return found


def test_one_that_does_not_fit_is_refused() -> None:
    twice = Mutant("twice", "x.py", "a", "b", "nothing", ("x.py",))
    for text in ("a = a", "c = d"):
        with pytest.raises(ValueError, match=r"twice: its old text is \d times in x\.py, not once"):
            twice.applied_to(text)
    with pytest.raises(ValueError, match=r"is not Python"):
        Mutant("torn", "x.py", "a", "(", "nothing", ("x.py",)).applied_to("a")
