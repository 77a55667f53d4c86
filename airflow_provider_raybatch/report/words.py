# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them, and text from elsewhere as a page, a card or Markdown may show it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from airflow_provider_raybatch.contract.base import in_words
from airflow_provider_raybatch.contract.text import cut_to, money_of

UNKNOWN = "unknown"
_MINUS = "\u2212"
_LONGEST_CURRENCY = 12
_MOST_COLUMNS = 40
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def known(value: float | None) -> bool:
    """Whether there is a number, finite and within what a float holds."""
    try:
        return value is not None and math.isfinite(value)
    except OverflowError:
        return False


def count(value: float | None) -> str:
    """A number of things: ``1,234``."""
    if value is None or not known(value):
        return UNKNOWN
    return f"{round(value):,}".replace("-", _MINUS)


def rate(value: float | None) -> str:
    """A number a second, with three digits: ``1,234``, ``12.3``, ``0.0012``."""
    if value is None or not known(value):
        return UNKNOWN
    if abs(value) >= 100 or value == round(value):
        return count(value) if abs(value) < 1e15 else f"{value:.2e}"
    return f"{value:.3g}".replace("-", _MINUS)


def seconds(value: float | None) -> str:
    """A duration: ``0.4 s``, ``3 min 5 s``."""
    if value is None or not known(value):
        return UNKNOWN
    return f"{value:.1f} s" if 0 < value < 10 else in_words(value)


def hours(gpu_seconds: float | None) -> str:
    """GPU seconds as hours: ``1.25 h``; seconds below a minute."""
    if gpu_seconds is None or not known(gpu_seconds):
        return UNKNOWN
    if gpu_seconds < 60:
        return f"{gpu_seconds:.3g} s" if gpu_seconds else "0 h"
    return f"{gpu_seconds / 3600:,.2f} h" if gpu_seconds >= 360 else f"{gpu_seconds / 3600:.3f} h"


def money(value: float | None, currency: str | None) -> str:
    """An amount: ``12.34 USD``."""
    if value is None or not known(value):
        return UNKNOWN
    return money_of(value, currency and currency[:_LONGEST_CURRENCY])


def percent(fraction: float | None) -> str:
    """A part of a whole: ``12.3 %``; neither 0 nor all where it is not."""
    if fraction is None or not known(fraction):
        return UNKNOWN
    value = 100 * fraction
    if 0 < value < 0.1:
        return "under 0.1 %"
    if 99.9 < value < 100:
        return "over 99.9 %"
    return f"{value:.0f} %" if value >= 100 else f"{value:.1f} %".replace(".0 %", " %")


def signed(text: str, positive: bool) -> str:
    """A change of the amount `text`."""
    return f"{'+' if positive else _MINUS}{text.lstrip(_MINUS + '-')}"


def short(value: float) -> str:
    """A number on an axis: ``1.5 k``, ``20 M``, ``2e+15``."""
    size = abs(value)
    if size >= 1e15 or 0 < size < 1e-4:
        return f"{value:.3g}"
    for step, letter in _STEPS:
        if size >= step:
            return f"{value / step:.4g} {letter}"
    return f"{value:.4g}"


_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""What HTML and YAML can't hold, and what shows nothing."""
_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks that turn text around; shown by number, since they could reorder what stands beside them."""


def fit(text: str) -> str:
    """`text` as a page may show it: line ends are line feeds, control characters are seen."""
    text = _UNFIT.sub("\ufffd", _LINE_END.sub("\n", text))
    return _TURNING.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def input_row(text: str | None) -> dict[str, Any] | None:
    """The `columns` of an input row as texts, the first 40 of so `many`.

    :param text: the row as JSON.
    :returns: ``None`` where there is no row, or its text was cut.
    """
    try:
        row = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not row:
        return None
    first = islice(row.items(), _MOST_COLUMNS)
    return {"many": len(row), "columns": [(name, value_text(value)) for name, value in first]}


def value_text(value: object) -> str:
    """Text as it is, other values as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "nested too deeply to be shown"


_LONGEST_CELL = 200
_MARKUP = re.compile(r"[\\`*<|~$@]|\](?=[(\[:])|(?<!\w)_|_(?!\w)|&(?=#?\w+;)|:(?=//)|(?<=www)\.")
"""What may begin markup within a line; slashes, ``www.`` and an at sign make links of bare addresses."""
_BLOCK = re.compile(r"^([>#+=-]|\d{1,9}[.)](?=\s|$))")
"""What begins a block at the start of a line."""
_ENTITIES = {"<": "&lt;", "&": "&amp;", ":": "&#58;", "@": "&#64;"}
_TICKS = re.compile("`+")


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a heading for each column; ends with a line feed."""
    lines = ["| " + " | ".join(cell(value) for value in row) + " |" for row in (names, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(names), *lines[1:]]) + "\n"


def cell(value: Any) -> str:
    """Escaped text for a table cell, whatever a model wrote."""
    if value is None:
        return ""
    if isinstance(value, float):
        text = f"{value:,.3f}".rstrip("0").rstrip(".")
    else:
        text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    text = " ".join(fit(text).split())
    text = text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 3] + "..."
    return _MARKUP.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), text)


def line(value: Any) -> str:
    """The same for a heading, a list or a paragraph."""
    return _BLOCK.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", cell(value))


def fenced(text: str, longest: int | None = None) -> str:
    """`text` as a block of code, whose fence is longer than any in it."""
    text = fit(text if longest is None else cut_to(text, longest))
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in _TICKS.findall(text))])
    return f"{fence}\n{text}\n{fence}"
