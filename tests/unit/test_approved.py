# SPDX-License-Identifier: Apache-2.0
"""Sentences in `messages.txt`: a difference fails, and `--approve` writes what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.approved import FILE, Table, has_test, read_tables

SAID = {1: "one", 2: "two"}
TITLE = "test_x.py::test_y"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    (tmp_path / FILE).write_text(f"{TITLE}\n  1 -> one\n  MOST -> 2\n\ntest_x.py::test_gone\n  1 -> 1\n")
    (tmp_path / "test_x.py").write_text("def test_y(assert_sentences): ...\ndef test_gone(): ...")
    return Table(tmp_path / FILE, TITLE, {"MOST": 2}, {"two": "2"})


def test_a_changed_sentence_fails_beside_the_approved_one(table: Table) -> None:
    table.check(SAID.get)
    with pytest.raises(pytest.fail.Exception, match="- 1 -> one\n\\+ 1 -> None"):
        table.check({2: "2"}.get)


@pytest.mark.parametrize(("say", "error"), [(SAID.get, KeyError), ({}.__getitem__, ValueError)])
def test_another_error_or_none_fails(table: Table, say: Any, error: type[Exception]) -> None:
    with pytest.raises(AssertionError, match="test_y: 1: "):
        table.check(say, error)


def test_a_table_without_lines_fails(table: Table) -> None:
    with pytest.raises(AssertionError, match="write 'other'"):
        Table(table.path, "other", {}, {}).check(SAID.get)


def test_approval_writes_what_is_said(table: Table) -> None:
    table.check({1: "1\n", 2: "two"}.get, approve=True)
    assert read_tables(table.path) == {TITLE: ["1 -> 1\\n", "MOST -> 2"]}


def test_each_table_has_its_test() -> None:
    files = list(Path(__file__).parent.rglob(FILE))
    assert files
    tables = [(path, title) for path in files for title in read_tables(path)]
    assert [title for path, title in tables if not has_test(path.parent, title)] == []
