# SPDX-License-Identifier: Apache-2.0
"""A copy of package and tests that mutants are applied to; the working tree stays as it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import cache_from_source
from pathlib import Path

from .mutant import PACKAGE, Mutant

ROOT = Path(__file__).parents[2]
_COPIED = (str(PACKAGE), "tests", "dags_examples", "docs", "pyproject.toml", "README.md", "Makefile")


class Scratch:
    """A copy below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        without = shutil.ignore_patterns("__pycache__", "*.safetensors")
        for name in _COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=without)
            else:
                shutil.copy2(source, target)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of processes that import the package from here instead of the installed one."""
        return {**os.environ, "PYTHONPATH": str(self.root)}

    def check(self) -> None:
        """Check that Python imports the package from this copy.

        :raises RuntimeError: it does not.
        """
        code = f"import {PACKAGE} as package; print(package.__file__)"
        completed = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.root,
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        )
        if not Path(completed.stdout.strip()).is_relative_to(self.root):
            raise RuntimeError(f"{PACKAGE} is imported from {completed.stdout.strip()}, not from the copy.")

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Apply one mutant to the copy, and undo it at the end.

        :raises ValueError: see :meth:`Mutant.applied_to`.
        """
        path = self.root / PACKAGE / mutant.file
        original = path.read_text()
        self._write(path, mutant.applied_to(original))
        try:
            yield
        finally:
            self._write(path, original)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text)
        # Python detects a stale cache by size and seconds, which a mutant may share with its original.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)
