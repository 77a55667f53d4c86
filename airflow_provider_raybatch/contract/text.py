# SPDX-License-Identifier: Apache-2.0
"""Text: made fit for Airflow's database, its logs and terminals; counted in words; and digests of it."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Value = TypeVar("Value")

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-~])?|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_GROUP = re.compile("::(?=(?:end)?group::)")
_REPLACEMENT = "\ufffd"


def storable(text: str) -> str:
    """`text` as a database takes it: PostgreSQL refuses NUL characters and lone surrogates in JSON."""
    return _NOT_STORABLE.sub(_REPLACEMENT, text)


def all_storable(value: Value) -> Value:
    """Plain data whose texts are :func:`storable`, keys of dictionaries included."""
    plain: Any = value
    if isinstance(value, str):
        plain = storable(value)
    elif isinstance(value, dict):
        plain = {all_storable(key): all_storable(one) for key, one in value.items()}
    elif isinstance(value, (list, tuple)):
        plain = [all_storable(one) for one in value]
    return plain  # type: ignore[no-any-return]


def clean(text: str) -> str:
    """`text` as a log may show it: storable, and without what steers a terminal or Airflow's log page.

    Of control characters, line feeds and tabs stay. ``::group::`` folds lines on Airflow's page.
    """
    if text.isascii() and text.isprintable() and "group::" not in text:
        return text
    text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n"))
    text = _CONTROL.sub(_REPLACEMENT, storable(text))
    return _GROUP.sub(": :", text)


def cut_to(text: str, longest: int) -> str:
    """`text`, cut to `longest` characters with a mark that says how many more there were."""
    if len(text) <= longest:
        return text
    mark = f" [{count_of(len(text) - longest, 'more character')}]"
    return text[: max(0, longest - len(mark))] + mark


def count_of(count: int, noun: str, plural: str | None = None) -> str:
    """A count and its noun: "1 row", "1,200 rows"; `plural` is by default the noun with an "s"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def plain_reason(error: BaseException) -> str:
    """What a foreign exception says, on one line and without the name of its class."""
    return in_words(type(error).__name__, str(error))


def in_words(kind: str, text: str) -> str:
    """See :func:`plain_reason`; of an exception whose class and text alone are known."""
    flat, plain = " ".join(text.split()), kind.rpartition(".")[2]
    if flat and plain == "KeyError":
        return f"there is no {flat}"
    return flat or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", plain).lower()


def nearest(name: object, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that `name` most likely misspells, whatever its case, hyphens and spaces around it.

    :param likeness: at least, from 0 to 1.
    """
    plain = {_plain(one): one for one in sorted(known) if one != name}
    close = difflib.get_close_matches(_plain(str(name)), plain, n=1, cutoff=likeness)
    return plain[close[0]] if close else None


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


def write_utf8() -> None:
    """Let this process write its output as UTF-8, which followers read, whatever this node's locale is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def money_of(amount: float, currency: str | None) -> str:
    """An amount of money: "1,234.50 EUR", and of small ones two digits that count: "0.0042 EUR"."""
    digits = 2 if amount == 0 or abs(amount) >= 0.1 else min(12, 1 - math.floor(math.log10(abs(amount))))
    return f"{amount:,.{digits}f} {currency or ''}".rstrip()


def version_parts(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, such as ``0.29.0+cpu``."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())


_CONTAINER = r"\b(?:abfss?|wasbs?|oci)://[\w.$-]{1,100}@"
"""A container or bucket before its account; a login has a colon."""
_URL = re.compile(
    rf"({_CONTAINER}|(?!file:|s3[an]?:|hf:)[A-Za-z][A-Za-z0-9+.-]+:/*)(?:[^/?#]*@)?([^?#]*)", re.IGNORECASE
)
_IN_TEXT = re.compile(r"(\b(?!file:|s3[an]?:|hf:)[a-z][a-z0-9+.-]{1,30}:/+)(\S*)", re.IGNORECASE)
"""A URL with what stands behind it; each character is looked at a few times, however long the text is."""
_LOGIN = re.compile(rf"({_CONTAINER})|(:/+)[^\s/?#'\"<>]{{1,300}}@", re.IGNORECASE)
_BEHIND = ")]}>'\",.;:"
"""What may stand behind a URL in a sentence."""


def shown_uri(uri: str) -> str:
    """`uri` as a message may show it.

    A URL loses its login, query and fragment: whoever has a presigned URL's signature can open the file.
    """
    found = _URL.match(uri)
    return uri if found is None else found[1] + found[2]


def without_queries(text: str) -> str:
    """A text as it may be shown that may have URLs somewhere; see :func:`shown_uri`."""
    return _IN_TEXT.sub(_without_query, text)


def _without_query(found: re.Match[str]) -> str:
    place, *query = re.split("[?#]", found[2], maxsplit=1)
    place = _LOGIN.sub(r"\1\2", found[1] + place)
    return place + "".join(one[len(one.rstrip(_BEHIND)) :] for one in query)


def hex_digest(text: str) -> str:
    """128 bits of the SHA-256 of `text`, as 32 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def json_digest(content: object, default: Callable[[Any], str] | None = None) -> str:
    """:func:`hex_digest` of plain data, whatever the order of its dictionaries; `default` as in `json`."""
    return hex_digest(json.dumps(content, sort_keys=True, ensure_ascii=False, default=default))
