# SPDX-License-Identifier: Apache-2.0
"""Tables ``input -> sentence`` in `messages.txt` beside tests; ``pytest --approve`` writes the sentences."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FILE = "messages.txt"
AssertSentences = Callable[..., None]
"""See :meth:`Table.check`; with ``lake="s3://..."``, that place is written as ``<lake>``."""


@dataclass(frozen=True)
class Table:
    """The lines of one test in the file of its folder."""

    path: Path
    title: str
    names: Mapping[str, Any]
    """What inputs may use: the names of the test's module."""
    places: Mapping[str, str]
    """What is written instead of a path that differs from run to run."""

    def check(self, say: Callable[..., object], error: Any = None, *, approve: bool = False) -> None:
        """Call ``say(<input>)`` for each line; it returns the sentence, or raises it as an `error`.

        A failure class other than `user_error` stands before the sentence.
        """
        tables = read_tables(self.path)
        approved = tables.get(self.title, [])
        assert approved, f"{self.path}: write '{self.title}' and below it lines '  <input> ->'"
        said = [self._line(line.partition(" ->")[0], say, error) for line in approved]
        if approve:
            kept = {one: tables[one] for one in tables if has_test(self.path.parent, one)} | {
                self.title: said
            }
            blocks = ("\n  ".join([one, *kept[one]]) for one in sorted(kept))
            self.path.write_text("\n\n".join(blocks) + "\n", "utf-8")
        elif said != approved:
            changes = [line for line in difflib.ndiff(approved, said) if line[0] in "-+"]
            pytest.fail(
                "\n".join([f"{self.title}; if it is right: pytest --approve", *changes]), pytrace=False
            )

    def _line(self, given: str, say: Callable[..., object], error: Any) -> str:
        try:
            said = str(eval(f"say({given})", {**self.names, "say": say}))
        except BaseException as caught:
            if error is None or not isinstance(caught, error):
                raise AssertionError(f"{self.title}: {given}: {caught!r}") from caught
            kind = getattr(getattr(caught, "failure_class", None), "value", "user_error")
            said = str(caught) if kind == "user_error" else f"[{kind}] {caught}"
        else:
            assert error is None, f"{self.title}: {given}: nothing is raised, but {said!r} is returned"
        for place, name in self.places.items():
            said = said.replace(place, name)
        return f"{given} -> " + said.replace("\n", "\\n")


def read_tables(path: Path) -> dict[str, list[str]]:
    """Return the lines of each test in a file."""
    blocks = path.read_text("utf-8").split("\n\n") if path.exists() else []
    return {title: lines for title, *lines in (block.strip("\n").split("\n  ") for block in blocks)}


def has_test(folder: Path, title: str) -> bool:
    module, *_, test = title.split("::")
    uses_it = re.compile(rf"def {test}\([^)]*\bassert_sentences\b")
    return (folder / module).exists() and uses_it.search((folder / module).read_text("utf-8")) is not None


@pytest.fixture
def assert_sentences(request: pytest.FixtureRequest) -> AssertSentences:
    title = "::".join([request.path.name, *request.node.nodeid.partition("[")[0].split("::")[1:]])
    places = {str(Path.cwd()): "<cwd>", f"{Path.home()}/": "<home>/"}
    if "tmp_path" in request.fixturenames:
        places[str(request.getfixturevalue("tmp_path"))] = "<tmp>"

    def check(say: Callable[..., object], error: Any = None, **named: str) -> None:
        own = {place: f"<{name}>" for name, place in named.items()}
        table = Table(request.path.parent / FILE, title, vars(request.module), own | places)
        table.check(say, error, approve=request.config.getoption("--approve"))

    return check
