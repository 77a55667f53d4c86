# SPDX-License-Identifier: Apache-2.0
"""Prompt templates over a row's columns: a plain substitution, one level deep.

Only ``{row.name}`` and ``{row['any name']}`` (or double quotes) are placeholders. Every other brace is text,
so a prompt with JSON in it needs no escaping, and values are never scanned again, so data can't inject a
placeholder. Preflight refuses ``{name}`` and ``{row.any name}`` where that is a column; ``{'{name}'}`` is the
text ``{name}``.

The text of a value has one form for each type, in a column or inside of another value. It is JSON. Only a
column of text, or of a type that JSON writes as text, has no quotes.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, ClassVar

_quoted = json.JSONEncoder(ensure_ascii=False).encode


class BinaryValueError(ValueError):
    """The value is binary, or has binary inside."""


class Float32(float):
    """A float that had 32 bits: its shortest text has fewer digits than that of the same number in 64."""

    __slots__ = ()
    packed: ClassVar[str] = "f"

    @property
    def shortest(self) -> float:
        """The number with the fewest digits that is the same in so few bits."""
        own = struct.pack(self.packed, self)
        tried = (float(f"{self:.{digits}g}") for digits in range(3, 9))
        return next((number for number in tried if _packed(self.packed, number) == own), float(f"{self:.9g}"))


class Float16(Float32):
    """The same of 16 bits."""

    __slots__ = ()
    packed = "e"


class MapEntries(list[Any]):
    """The entries of a map, a tuple each: an empty map is not an empty list."""


class ClassLabel(int):
    """The number of a class, which a prompt shows as its name."""

    name: str

    @classmethod
    def of(cls, number: int, name: str) -> ClassLabel:
        """The label of one class."""
        label = cls(number)
        label.name = name
        return label


def prompt_text(value: Any) -> str:
    """The text of a value that is not null.

    :raises BinaryValueError: it is binary, or has binary inside.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, ClassLabel):
        return value.name
    return _unquoted(value) or _json(value)


def _json(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, ClassLabel):
        return _quoted(value.name)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return _of_float(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return _object(value.items())
    if isinstance(value, MapEntries):
        return _object(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_json, value))}]"
    return _quoted(_unquoted(value) or str(value))


def _object(entries: Iterable[tuple[Any, Any]]) -> str:
    return f"{{{', '.join(f'{_quoted(prompt_text(key))}: {_json(inner)}' for key, inner in entries)}}}"


def _unquoted(value: Any) -> str:
    """The text of a type that JSON does not know; empty for those that it knows."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise BinaryValueError
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return _duration(value)
    known = (str, bool, int, float, Decimal, dict, list, tuple)
    return "" if value is None or isinstance(value, known) else str(value)


def _of_float(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value.shortest if isinstance(value, Float32) else value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _packed(kind: str, number: float) -> bytes:
    try:
        return struct.pack(kind, number)
    except OverflowError:  # rounded up beyond the largest
        return b""


def _duration(value: datetime.timedelta) -> str:
    """As in ISO 8601; those of pandas have nanoseconds, too."""
    nanoseconds = (value.days * 86400 + value.seconds) * 10**9 + value.microseconds * 1000
    nanoseconds += getattr(value, "nanoseconds", 0)
    seconds, rest = divmod(abs(nanoseconds), 10**9)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    exact = f"{seconds}.{rest:09}".rstrip("0").rstrip(".")
    time = [
        f"{number}{unit}"
        for number, unit in ((hours, "H"), (minutes, "M"), (exact, "S"))
        if number not in {0, "0"}
    ]
    date = f"{days}D" if days else ""
    sign = "-" if nanoseconds < 0 else ""
    return f"{sign}P{date}{'T' if time or not days else ''}{''.join(time) or ('' if days else '0S')}"


_PLACEHOLDER = re.compile(r"\{row(?:\.([A-Za-z_]\w*)|\['([^']+)'\]|\[\"([^\"]+)\"\])\}")
_ESCAPED = re.compile(r"\{'(\{[^{}'\n]+\})'\}")
_DOUBLE = re.compile(r"\{\{(?=\s|[^{}\n]*\s\}\})\s*(row\s*[.\[][^{}\n]{0,80}?)\s*\}\}")
_BRACED = re.compile(r"\{+[ \t]*([^{}\n]+?)[ \t]*\}+")
_LOOKALIKE = re.compile(r"\{+\s*rows?\s*[.\[](?:[^{}\n]{0,80}\}|[\w'\"]*\]?)", re.IGNORECASE)
_OF_ROW = re.compile(r"rows?\s*(?:\.\s*(.+)|\[\s*['\"]?(.+?)['\"]?\s*\]?)", re.IGNORECASE)


class RowTemplateError(ValueError):
    """A row has no usable value for a placeholder."""


class FilledTemplate(str):
    """The text of one row, which knows what of it is the row's.

    :ivar pieces: text of the template and values in turn; the first and the last are the template's.
    """

    __slots__ = ("pieces",)
    pieces: Sequence[str]

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
    """The value of a column as prompt text, see :func:`prompt_text`.

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
