# SPDX-License-Identifier: Apache-2.0
"""A public name has one meaning: it is defined in one module of the package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import airflow_provider_raybatch
from airflow_provider_raybatch.operators import ray_batch

PACKAGE = Path(airflow_provider_raybatch.__file__).parent


@pytest.fixture(scope="module")
def defined() -> dict[str, list[str]]:
    """The modules that define a public class, function or alias, by its name."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id].append(path.relative_to(PACKAGE).as_posix())
            elif isinstance(node, ast.Assign):
                names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for name in names:
                    found[name].append(path.relative_to(PACKAGE).as_posix())
    return found


def test_each_public_class_is_defined_once() -> None:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


@pytest.mark.parametrize(
    "name", ["OnStaleState", "as_text", "judge", "diagnose", "RowMask", "column_text", "statistics_of"]
)
def test_is_defined_once(defined: dict[str, list[str]], name: str) -> None:
    assert len(defined[name]) == 1, defined[name]


@pytest.mark.parametrize("name", ["check", "look"])
def test_vague_name_is_not_defined(defined: dict[str, list[str]], name: str) -> None:
    assert defined[name] == []


def test_rows_are_those_of_a_dataset_that_a_user_reads(defined: dict[str, list[str]]) -> None:
    assert defined["Rows"] == ["dataset/opening.py"]


def test_each_operator_argument_is_in_the_name_of_a_test() -> None:
    """Who changes an argument finds its tests by its name."""
    tests = Path(__file__).parents[1]
    names = " ".join(
        f"{path.name} {' '.join(re.findall(r'def (test_[a-z0-9_]+)', path.read_text('utf-8')))}"
        for path in tests.rglob("test_*.py")
    )
    assert [argument for argument in ray_batch.ARGUMENTS if argument not in names] == []
