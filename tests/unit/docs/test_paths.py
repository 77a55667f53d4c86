# SPDX-License-Identifier: Apache-2.0
"""Files and folders that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ...support.documents import PACKAGE, PAGES, ROOT

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
QUESTION = re.compile(r"^\| ([^|]+\?) \| `([\w/.]+)` \|$", re.MULTILINE)
MADE = "build/"
"""Begins the names of files that `make` writes."""


def paths_in(page: Path) -> set[str]:
    """Return paths in code marks: a file with a folder before it, or a folder with a slash after it."""
    text = page.read_text(encoding="utf-8")
    return set(re.findall(r"`(\w+(?:/\w+)*/(?:\w+\.\w+)?)[`:]", text))


def missing(paths: set[str], page: Path = CONTRIBUTING) -> list[str]:
    """Return paths that are not in the repository, the package, the tests or beside the page."""
    homes = [ROOT, PACKAGE, ROOT / "tests", ROOT / "tests/unit", page.parent]
    needed = {path for path in paths if not path.startswith(MADE)}
    return sorted(path for path in needed if not any((home / path).exists() for home in homes))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page: Path) -> None:
    assert missing(paths_in(page), page) == []


def test_each_question_has_its_own_answer() -> None:
    found = QUESTION.findall(CONTRIBUTING.read_text(encoding="utf-8"))
    assert len({path for _, path in found}) == len(found) >= 20


@pytest.mark.parametrize(("question", "path"), QUESTION.findall(CONTRIBUTING.read_text(encoding="utf-8")))
def test_answer_exists(question: str, path: str) -> None:
    assert (PACKAGE / path).exists(), question


def test_a_missing_path_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`operators/ray_batch.py`, `operators/none.py: run`, `job/`, `nowhere/`, `a/b` and `x.py`\n"
    )
    assert missing(paths_in(page)) == ["nowhere/", "operators/none.py"]
