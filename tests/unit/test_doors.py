# SPDX-License-Identifier: Apache-2.0
"""The script that deletes each door on a copy finds what still needs it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def doors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("raybatch_doors", ROOT / ".ci/doors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def test_each_pattern_of_a_door_names_something(doors: ModuleType) -> None:
    for door in doors.DOORS:
        assert doors.found_by(door.paths, ROOT)
        assert doors.found_by(door.neighbours, ROOT)
    with pytest.raises(SystemExit, match=r"doors: gone/\*\.py names nothing"):
        doors.found_by(["gone/*.py"], ROOT)


def test_an_import_through_a_door_is_found(doors: ModuleType, tmp_path: Path) -> None:
    """Also one in a function, which neither an import of the module nor mypy with stubs would run into."""
    core = tmp_path / doors.PACKAGE / "core.py"
    core.parent.mkdir()
    name = f"{doors.PACKAGE}.batch_api.plugin"
    core.write_text(
        f"import os\nfrom {doors.PACKAGE}.core import f\n\ndef f():\n    from {name} import views\n"
    )
    found = list(doors.broken_imports(tmp_path))
    assert found == [f"{doors.PACKAGE}/core.py:5: {name} is behind the door"]
