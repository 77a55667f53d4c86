# SPDX-License-Identifier: Apache-2.0
"""Comments and docstrings avoid words that need a second reading."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.approved import FILE, read_tables

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
    # Most files have such a word nowhere, and need not be parsed.
    sources = {path: path.read_text("utf-8") for path in sorted((ROOT / folder).rglob("*.py"))}
    found = {
        path.relative_to(ROOT).as_posix(): words
        for path, source in sources.items()
        if AVOIDED.search(source) and (words := AVOIDED.findall("\n".join(prose(source))))
    }
    assert found == {}


def test_approved_sentences_use_plain_words() -> None:
    found = [
        words.group()
        for path in sorted((ROOT / "tests").rglob(FILE))
        for lines in read_tables(path).values()
        for line in lines
        if (words := AVOIDED.search(sentence := line.partition(" -> ")[2]) or ONE_OF_MANY.search(sentence))
    ]
    assert found == []


def test_an_avoided_word_is_found() -> None:
    source = 'x = "nobody"  # for whom\n\n\ndef f():\n    """Somebody calls it."""\n'
    assert AVOIDED.findall("\n".join(prose(source))) == ["whom", "Somebody calls it."]


PLURAL = re.compile(
    r" (?:(?:more|failed|different|sampled|stored|other) )?(?:rows|tokens|files|parts|engines|replicas"
    r"|columns|chunks|prompts|nodes|GPUs|requests|responses|lines|times|characters|bytes|values|words|questions"
    r"|submissions|attempts)\b(?!/)"
)


ONE_OF_MANY = re.compile(rf"(?<![\w.,-])1{PLURAL.pattern}(?! from index)")
"""The last is how Pydantic says it."""


def counts_without_singular(source: str) -> Iterator[str]:
    """Numbers in messages that a plural follows whatever they are; names in capitals are never 1."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in pairwise(node.values):
            if not (isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue)):
                continue
            found, name = PLURAL.match(str(text.value)), ast.unparse(value.value)
            form = "" if value.format_spec is None else ast.unparse(value.format_spec)
            is_whole = value.conversion < 0 and form in {"", "f','"}
            if found and is_whole and not name.rpartition(".")[2].isupper():
                yield name + found.group()


def test_messages_count_in_singular_and_plural() -> None:
    """No message says "1 rows": `count_of` writes a count with its noun."""
    found = {
        path.relative_to(ROOT).as_posix(): counts
        for path in sorted((ROOT / "airflow_provider_raybatch").rglob("*.py"))
        if (counts := list(counts_without_singular(path.read_text("utf-8"))))
    }
    assert found == {}


def test_a_count_without_singular_is_found() -> None:
    source = (
        "f'{x:,} of {len(y)} rows, {n:,} failed rows, {MOST:,} rows, {rate:.1f} rows, {n} rows/s, {n!r} rows'"
    )
    assert list(counts_without_singular(source)) == ["len(y) rows", "n failed rows"]
