# SPDX-License-Identifier: Apache-2.0
"""Comments and docstrings avoid words that need a second reading."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("airflow_provider_raybatch", "tests", "benchmarks", "dags_examples", "docs", ".ci")
AVOIDED = re.compile(r"\b(?:nobody|somebody|anybody|everybody|whom|of which)\b.{0,30}", re.IGNORECASE)


def prose(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_prose_uses_plain_words(folder: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (words := AVOIDED.findall("\n".join(prose(path.read_text("utf-8")))))
    }
    assert found == {}


def test_an_avoided_word_is_found() -> None:
    source = 'x = "nobody"  # for whom\n\n\ndef f():\n    """Somebody calls it."""\n'
    assert AVOIDED.findall("\n".join(prose(source))) == ["whom", "Somebody calls it."]
