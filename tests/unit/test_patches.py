# SPDX-License-Identifier: Apache-2.0
"""What tests set by assignment in the package is there: else they set nothing, and show something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = "airflow_provider_raybatch"
TESTS = Path(__file__).parent.parent


def imported(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Module and name in it of what a file takes from the package, by its name in the file."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    taken = [(node.module, alias) for node in imports for alias in node.names if node.module]
    return {
        alias.asname or alias.name: (module, alias.name)
        for module, alias in taken
        if module.startswith(PACKAGE)
    }


def assigned(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Names and attributes of assignments such as ``plan.ROWS = 3``."""
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                yield target.value.id, target.attr


def found(module: str, name: str) -> Any:
    parent = import_module(module)
    return getattr(parent, name) if hasattr(parent, name) else import_module(f"{module}.{name}")


def test_what_tests_set_in_the_package_is_there() -> None:
    looked_at, missing = 0, []
    for file in sorted(TESTS.rglob("*.py")):
        tree = ast.parse(file.read_text())
        names = imported(tree)
        for name, attribute in assigned(tree):
            if name in names:
                looked_at += 1
                if not hasattr(found(*names[name]), attribute):
                    missing.append(f"{file.relative_to(TESTS)}: {name}.{attribute}")
    assert looked_at >= 5
    assert not missing
