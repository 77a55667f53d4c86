# SPDX-License-Identifier: Apache-2.0
"""The text of a column's value in a prompt: one form for each type, in a column or inside of another value.

It is JSON. Only a column of text, or of a type that JSON writes as text, has no quotes.
"""

from __future__ import annotations

import datetime
import json
import math
import struct
from collections.abc import Iterable
from decimal import Decimal
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
