# SPDX-License-Identifier: Apache-2.0
"""Prompt templates over a row's columns: a plain substitution, one level deep.

Only ``{row.name}`` and ``{row['any name']}`` (or double quotes) are placeholders. Every other brace is text,
so a prompt with JSON in it needs no escaping, and values are never scanned again, so data can't inject a
placeholder. Preflight refuses ``{name}`` and ``{row.any name}`` where that is a column; ``{'{name}'}`` is the
text ``{name}``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from airflow_provider_raybatch.contract.prompt_text import BinaryValueError, prompt_text

_PLACEHOLDER = re.compile(r"\{row(?:\.([A-Za-z_]\w*)|\['([^']+)'\]|\[\"([^\"]+)\"\])\}")
_ESCAPED = re.compile(r"\{'(\{[^{}'\n]+\})'\}")
_DOUBLE = re.compile(r"\{\{(?=\s|[^{}\n]*\s\}\})\s*(row\s*[.\[][^{}\n]{0,80}?)\s*\}\}")
_BRACED = re.compile(r"\{+[ \t]*([^{}\n]+?)[ \t]*\}+")
_LOOKALIKE = re.compile(r"\{+\s*rows?\s*[.\[](?:[^{}\n]{0,80}\}|[\w'\"]*\]?)", re.IGNORECASE)
_OF_ROW = re.compile(r"rows?\s*(?:\.\s*(.+)|\[\s*['\"]?(.+?)['\"]?\s*\]?)", re.IGNORECASE)


class RowTemplateError(ValueError):
    """A row has no usable value for a placeholder."""


class FilledTemplate(str):
    """The text of one row, which knows what of it is the row's."""

    pieces: Sequence[str]
    """Text of the template and values in turn; the first and the last are the template's."""

    def __new__(cls, pieces: Sequence[str]) -> FilledTemplate:
        """Put it together."""
        made = str.__new__(cls, "".join(pieces))
        made.pieces = pieces
        return made

    def __reduce__(self) -> tuple[type[FilledTemplate], tuple[Sequence[str]]]:
        return FilledTemplate, (self.pieces,)

    @property
    def values(self) -> Sequence[str]:
        """What comes from the row."""
        return self.pieces[1::2]

    def cut(self, characters: int) -> FilledTemplate:
        """With at most so many characters of each value."""
        return FilledTemplate([
            piece[:characters] if number % 2 else piece for number, piece in enumerate(self.pieces)
        ])


@lru_cache(maxsize=256)
def _compiled(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The literal pieces, and the names between them. A DAG often has one template in many tasks."""
    pieces = _PLACEHOLDER.split(text)
    # re.split yields: text, group1, group2, group3, text, ... ; exactly one of the three groups is set.
    literals = tuple(_ESCAPED.sub(r"\1", literal) for literal in pieces[0::4])
    names = (next(name for name in pieces[i : i + 3] if name is not None) for i in range(1, len(pieces), 4))
    return literals, tuple(names)


class RowTemplate:
    """A compiled template."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._literals, self._names = _compiled(text)

    @property
    def columns(self) -> list[str]:
        """The columns the template reads, each once, in order of appearance."""
        return list(dict.fromkeys(self._names))

    @property
    def lookalikes(self) -> list[str]:
        """Text that resembles a placeholder but is none, such as ``{row.a.b}`` or ``{Row.a}``."""
        return list(dict.fromkeys(_LOOKALIKE.findall(self._rest)))

    @property
    def doubled(self) -> tuple[str, str] | None:
        """The first ``{{ row.name }}``, and the placeholder that was meant."""
        found = _DOUBLE.search(self.text)
        return (found.group(), f"{{{found.group(1).strip()}}}") if found else None

    @property
    def braced(self) -> dict[str, str]:
        """Text such as ``{name}``, ``{row.a b}`` and an open ``{row.a``, each with the column it may mean."""
        inside = {braces[0]: braces[1] for braces in _BRACED.finditer(self._rest)}
        inside |= {text: text.strip("{ \t") for text in self.lookalikes if "}" not in text}
        of_row = {text: _OF_ROW.fullmatch(name) for text, name in inside.items()}
        return {text: (found[1] or found[2]) if (found := of_row[text]) else inside[text] for text in inside}

    @property
    def _rest(self) -> str:
        """The template without its placeholders and its escaped text."""
        return _ESCAPED.sub("", _PLACEHOLDER.sub("", self.text))

    def render(self, row: Mapping[str, Any]) -> FilledTemplate:
        """Fill in one row.

        :raises RowTemplateError: a column is missing, null, or has binary in it.
        """
        out = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            out.append(column_text(name, row))
            out.append(literal)
        return FilledTemplate(out)


def placeholder(column: str) -> str:
    """How a template names this column."""
    if re.fullmatch(r"[A-Za-z_]\w*", column):
        return f"{{row.{column}}}"
    return f"{{row['{column}']}}" if "'" not in column else f'{{row["{column}"]}}'


def column_text(name: str, row: Mapping[str, Any]) -> str:
    """The value of a column as prompt text, see :mod:`~airflow_provider_raybatch.contract.prompt_text`.

    :raises RowTemplateError: the column is missing, null, or has binary in it.
    """
    try:
        value = row[name]
    except KeyError:
        raise RowTemplateError(f"the row has no column {name!r}") from None
    if isinstance(value, str):
        return value
    if value is None:
        raise RowTemplateError(f"column {name!r} is null")
    try:
        return prompt_text(value)
    except BinaryValueError:
        inside = "has binary inside, which" if isinstance(value, (dict, list)) else "is binary and"
        raise RowTemplateError(f"column {name!r} {inside} has no text form") from None
