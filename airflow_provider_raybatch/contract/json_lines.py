# SPDX-License-Identifier: Apache-2.0
"""Which bytes are a line of JSON Lines, and of an OpenAI batch file.

Airflow's worker refuses a batch file for a line that the job would answer with an error, so both read it by
these rules.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

LONGEST_LINE = 128 * 1024 * 1024
"""Bytes, line feed included."""
LONGEST_BLANK = 16
"""Bytes of a blank line, line feed included; longer lines of white space count as rows."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MOST_LEVELS = 200
"""Lists and objects in each other, in a field of a batch line; Python's own reader takes several hundred, and
fewer where the stack is deeper, as that of a publisher."""

_KINDS = {list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
_SPACE = " \t\r\n"
_NOT_TAKEN: dict[type, str] = {
    UnicodeEncodeError: "a text in the line has half of a surrogate pair",
    OverflowError: "a number in the line is too large",
    RecursionError: "the line has too many lists and objects in each other",
}
"""Reasons not to take what the grammar of JSON allows."""
_HALF_OF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonLineError(ValueError):
    """A line is not what it must be. The text says why, and may quote the line.

    :param unquoted: the reason without a quote, for a line that is JSON; empty for one that is not.
    """

    def __init__(self, text: str, unquoted: str = "") -> None:
        super().__init__(text)
        self.unquoted = unquoted


class RepeatedKeyError(JsonLineError):
    """An object has a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"an object in the line has the key {key!r} twice", "an object in the line has a key twice"
        )
        self.key = key


def is_blank(line: bytes) -> bool:
    """Whether a line of JSON Lines is not a row."""
    return len(line) <= LONGEST_BLANK and not line.strip()


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line; numbers may be NaN or infinite.

    :raises JsonLineError: it is not JSON in UTF-8, not an object, or has a key twice.
    """
    return _read(line, _LENIENT)


def batch_request(line: bytes) -> dict[str, Any]:
    """The object in a line of a batch file; all its values can be written as JSON again.

    :raises JsonLineError: as of :func:`json_object`; or it has a number that is not finite, or a field with
        more than :data:`MOST_LEVELS` lists and objects in each other.
    """
    found = _read(line, _STRICT)
    # Few lines are long enough for so many brackets, and fewer have them.
    if len(line) > 2 * MOST_LEVELS and line.count(b"{") + line.count(b"[") > MOST_LEVELS:
        _check_levels(found)
    return found


def _read(line: bytes, decoder: json.JSONDecoder) -> dict[str, Any]:
    try:
        # Decoded here, since the decoder would accept surrogates in bytes. A file that was joined from
        # several has a byte order mark in the middle.
        text = (line[3:] if line.startswith(BYTE_ORDER_MARK) else line).decode().strip(_SPACE)
        value, end = decoder.raw_decode(text)
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
        if b"\\" in line and _HALF_OF_PAIR.search(line):
            json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is not text
    except JsonLineError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise JsonLineError(f"the line is not JSON ({error})", _NOT_TAKEN.get(type(error), "")) from None
    if isinstance(value, dict):
        return value
    why = f"the line is JSON, but {_KINDS.get(type(value), 'a number')} instead of an object"
    raise JsonLineError(why, why)


def _check_levels(line: dict[str, Any]) -> None:
    level = -1
    inner: list[Any] = [line]
    while inner := [one for one in inner if isinstance(one, (dict, list))]:
        level += 1
        if level > MOST_LEVELS:
            why = f"a field has more than {MOST_LEVELS} lists and objects in each other"
            raise JsonLineError(why, why)
        inner = [one for some in inner for one in (some.values() if isinstance(some, dict) else some)]


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of `pairs`; JSON's reader would silently keep the last value of a key.

    :raises RepeatedKeyError: a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RepeatedKeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


def _finite(number: str) -> float:
    found = float(number)
    if found - found:  # of an infinite number it is NaN
        raise OverflowError("a number is larger than JSON's readers take")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


_LENIENT = json.JSONDecoder(object_pairs_hook=object_of)
_STRICT = json.JSONDecoder(object_pairs_hook=object_of, parse_float=_finite, parse_constant=_no_number)
