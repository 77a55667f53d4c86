# SPDX-License-Identifier: Apache-2.0
"""Reads the pages of the documentation: anchors, links, code blocks and quoted messages."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "airflow_provider_raybatch"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md"),
                *(ROOT / "dags_examples").rglob("*.md")])  # fmt: skip

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    :param language: the word after the fence, empty where there is none.
    :param line: of the fence in the page.
    """

    page: Path
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        """Page and line, as an id of a test."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return every block of every page in one of these languages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            if match[1] in languages:
                found.append(Block(page, text[: match.start()].count("\n") + 1, match[1], match[2]))
    return found


def commands(block: Block) -> list[list[str]]:
    """Return the words of each command of a block of shell."""
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def links(page: Path) -> list[str]:
    """Return the targets of the page's links, except for those in code."""
    return _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return what a link may name after ``#``: GitHub's form of each heading."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
    return found


def first_column(page: Path) -> set[str]:
    """Return the names in code marks in the first column of the page's tables."""
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


# Messages.


@dataclass(frozen=True)
class Message:
    """A text that the code may show: fixed parts, with a gap for each value.

    :param parts: fixed texts with a gap between each two.
    :param place: file and line.
    """

    parts: tuple[str, ...]
    place: str

    @property
    def text(self) -> str:
        """The text with ``<>`` for each gap."""
        return "<>".join(self.parts)

    def quotes(self, quoted: str) -> bool:
        """Return whether a page quotes this message; the field at its beginning may have another name there.

        :param quoted: the page's text, with ``<...>`` for values.
        """
        if max(self._without_field.parts, key=len) not in quoted:
            return False  # a quick check that rules out most messages
        fixed = len("".join(self.parts))
        if 2 * fixed < len(_VALUE.sub("", quoted)):
            return False  # a message of few fixed parts would match anything
        return self._is(quoted) or self._without_field._is(_FIELD.sub("", quoted))

    def _is(self, quoted: str) -> bool:
        return re.fullmatch(".+?".join(map(re.escape, self.parts)), quoted, re.DOTALL) is not None

    @property
    def _without_field(self) -> Message:
        first, *others = self.parts
        return Message((_FIELD.sub("", first), *others), self.place)


_FIELD = re.compile(r"^[a-z_][\w.]*: ")
_VALUE = re.compile(r"<[^<>]*>")


def messages_of_the_code() -> list[Message]:
    """Return every text in the package that is longer than a few words, in the order of the files."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {id(part) for node in ast.walk(tree) for part in _inside(node)}
        for node in ast.walk(tree):
            if id(node) not in inner and (parts := tuple(_parts(node))) and sum(map(len, parts)) > 12:
                found.append(Message(parts, f"{path.relative_to(ROOT)}:{node.lineno}"))  # type: ignore[attr-defined]
    return found


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a composed text, which are not texts of their own."""
    if isinstance(node, ast.JoinedStr):
        yield from (value for value in node.values if isinstance(value, ast.Constant))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and list(_parts(node)):
        yield from (node.left, node.right)


def _parts(node: ast.AST) -> Iterator[str]:
    """Yield the fixed parts of a text; nothing if the node is not a text."""
    match node:
        case ast.Constant(value=str(text)):
            yield from re.split(r"%(?:\.\d)?[srdf]", text)  # logging's own gaps
        case ast.JoinedStr(values=values):
            parts = [""]
            for value in values:
                if isinstance(value, ast.Constant):
                    parts[-1] += str(value.value)
                else:
                    parts.append("")
            yield from parts
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            before, after = list(_parts(left)), list(_parts(right))
            if before and after:
                yield from (*before[:-1], before[-1] + after[0], *after[1:])
