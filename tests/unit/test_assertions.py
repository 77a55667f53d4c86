# SPDX-License-Identifier: Apache-2.0
"""Each test asserts something itself, or calls a helper whose name begins with ``assert_``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def asserts(test: ast.AST) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name.startswith("assert_") or name in {"raises", "warns", "fail"}:
                return True
    return False


def read_tests(source: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    body = ast.parse(source).body
    for node in [*body, *(one for each in body if isinstance(each, ast.ClassDef) for one in each.body)]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def test_each_test_asserts() -> None:
    tests = [
        (path.relative_to(TESTS).as_posix(), test)
        for path in sorted(TESTS.rglob("test_*.py"))
        for test in read_tests(path.read_text())
    ]
    assert len(tests) > 500
    assert [(path, test.name) for path, test in tests if not asserts(test)] == []


def test_a_test_without_an_assertion_is_found() -> None:
    source = (
        "def test_x():\n    check(1)\ndef test_y():\n    assert_readable(1)\ndef test_z():\n    assert 1\n"
    )
    assert [asserts(test) for test in read_tests(source)] == [False, True, True]


def test_each_name_is_short() -> None:
    names = [test.name for path in sorted(TESTS.rglob("test_*.py")) for test in read_tests(path.read_text())]
    assert [name for name in names if len(name) >= 60] == []


def test_no_name_begins_with_a_pronoun() -> None:
    """A name is read alone, in a report."""
    names = [test.name for path in sorted(TESTS.rglob("test_*.py")) for test in read_tests(path.read_text())]
    begins = re.compile(r"test_(it|its|they|their|this|that|those|these)_")
    assert [name for name in names if begins.match(name)] == []
