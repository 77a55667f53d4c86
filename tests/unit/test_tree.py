# SPDX-License-Identifier: Apache-2.0
"""The script that counts folders and arrows finds every kind of import circle."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tree() -> ModuleType:
    spec = importlib.util.spec_from_file_location("raybatch_tree", ROOT / ".ci/tree.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def package(root: Path, **modules: str) -> Path:
    """Write a package `p` of modules, named with `_` for each dot."""
    for name, code in modules.items():
        path = root / "p" / f"{name.replace('_', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
        for folder in path.relative_to(root).parents[:-1]:
            (root / folder / "__init__.py").touch()
    return root / "p"


def test_a_circle_over_three_folders(tree: ModuleType, tmp_path: Path) -> None:
    lazily = "def f():\n    from p.c import z\n"
    root = package(tmp_path, a_x="import p.b.y", b_y=lazily, c_z="from p import a", d_u="from p.a import x")
    top, *_ = tree.levels(root)
    assert top.circles == (frozenset({"a", "b", "c"}),)
    assert tree.faults([top]) == ["the package: a, b, c import each other."]


def test_a_circle_inside_of_a_folder(tree: ModuleType, tmp_path: Path) -> None:
    root = package(tmp_path, a_x="from p.a.y import one", a_y="from p.a import x", b_z="from p.a import x")
    assert tree.faults(tree.levels(root)) == ["a: x, y import each other."]


def test_too_many_loose_modules(tree: ModuleType, tmp_path: Path) -> None:
    root = package(tmp_path, **{f"job_m{number}": "" for number in range(5)})
    assert tree.faults(tree.levels(root)) == ["job: 5 loose modules; 4 are allowed."]


def test_imports_that_run_down_are_counted_once(tree: ModuleType, tmp_path: Path) -> None:
    root = package(tmp_path, a_x="import p.b.y\nimport p.b.z\nimport os", b_y="", b_z="from p.b.y import one")
    top, a, b = tree.levels(root)
    assert (top.arrows, a.arrows, b.arrows) == ({("a", "b")}, frozenset(), {("z", "y")})
    assert tree.faults([top, a, b]) == []


@pytest.mark.parametrize(("lines", "is_right"), [(119, False), (120, True), (350, True), (351, False)])
def test_modules_of_a_room_have_one_noun(
    tree: ModuleType, tmp_path: Path, lines: int, is_right: bool
) -> None:
    root = package(tmp_path, storage_file="x = 1\n" * lines, contract_arguments_names="x = 1\n")
    (root / "contract/arguments/names.py").rename(root / "contract/arguments/vllm_names.py")
    said = f"storage/file: it has {lines} lines; a module has 120 to 350."
    assert tree.misshapen(root) == ([] if is_right else [said])


def test_package_has_no_circles(tree: ModuleType) -> None:
    assert tree.faults(tree.levels(ROOT / "airflow_provider_raybatch")) == []
    assert tree.misshapen(ROOT / "airflow_provider_raybatch") == []
    assert len(tree.BOUNDARIES) <= 60
    named = [ROOT / "airflow_provider_raybatch" / f"{name}.py" for name in tree.BOUNDARIES | tree.LARGE]
    assert all(file.is_file() for file in named)
