# SPDX-License-Identifier: Apache-2.0
"""A mutant: a change to the safety code that would break a promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path("airflow_provider_raybatch")
TESTS = Path("tests/unit")


@dataclass(frozen=True)
class Mutant:
    """One or a few adjacent lines of the package, broken.

    :param file: relative to the package.
    :param old: text that occurs exactly once in the file.
    :param new: text that replaces it.
    :param loses: what users would lose.
    :param tests: tests that should notice, relative to ``tests/unit``: files or ``file::test``, fastest
        first.
    :param equivalent: why it breaks no promise; empty where a test must notice it.
    """

    name: str
    file: str
    old: str
    new: str
    loses: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def applied_to(self, text: str) -> str:
        """Return the file's text with the mutation.

        :raises ValueError: the old text does not occur exactly once, or the result is not Python.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: its old text is {found} times in {self.file}, not once.")
        mutated = text.replace(self.old, self.new)
        try:
            compile(mutated, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: what it makes of {self.file} is not Python ({error}).") from None
        return mutated


def by_file(files: Mapping[str, Mapping[str, tuple[str, ...]]]) -> tuple[Mutant, ...]:
    """Return the mutants of each file.

    :param files: by file and by name, a mutant's `old`, `new` and `loses`, and then its `tests`.
    """
    return tuple(
        Mutant(name, file, old, new, loses, tuple(tests))
        for file, mutants in files.items()
        for name, (old, new, loses, *tests) in mutants.items()
    )
