# SPDX-License-Identifier: Apache-2.0
"""Programs of the repository that are in no package, as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def program(path: str, name: str) -> ModuleType:
    """Import a program.

    :param path: relative to the repository.
    :param name: that the module gets.
    """
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
