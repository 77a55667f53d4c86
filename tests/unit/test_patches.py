# SPDX-License-Identifier: Apache-2.0
"""What tests set by assignment in a module is read there: else they set nothing, and show something else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

PACKAGE = "airflow_provider_raybatch"
ROOT = Path(__file__).parents[2]


def modules(tree: ast.AST) -> dict[str, str]:
    """Modules of the package that a file imports, by their names in the file."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
    return {name: module for name, module in found.items() if is_module(module)}


def is_module(name: str) -> bool:
    try:
        return name.startswith(PACKAGE) and find_spec(name) is not None
    except ModuleNotFoundError:  # a name of a module, as a class
        return False


def assigned(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What is assigned to: ``plan`` and ``ROWS`` of ``plan.ROWS = 3`` and of ``setattr(plan, "ROWS", 3)``."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [each for one in node.targets for each in getattr(one, "elts", [one])]
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute):
                yield ast.unparse(target.value), target.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and len(node.args) == 3:
            yield ast.unparse(node.args[0]), getattr(node.args[1], "value", "")


def is_read(module: str, name: str) -> bool:
    """Whether a module reads a name itself, or has a function of that name, which others import at a call."""
    tree = ast.parse(Path(import_module(module).__file__ or "").read_text())
    return any(
        (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.FunctionDef) and node.name == name)
        for node in ast.walk(tree)
    )


def test_what_tests_set_in_a_module_is_read_there() -> None:
    looked_at, unread = 0, []
    for file in sorted([*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]):
        source = file.read_text()
        tree = ast.parse(source if PACKAGE in source else "")
        names = modules(tree)
        for name, attribute in assigned(tree):
            if name in names:
                looked_at += 1
                if not is_read(names[name], attribute):
                    unread.append(f"{file.relative_to(ROOT)}: {name}.{attribute}")
    assert looked_at >= 5
    assert not unread
