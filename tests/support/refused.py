# SPDX-License-Identifier: Apache-2.0
"""Text that databases and logs can't bear, and where it got to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HOSTILE = "be\0fore \udcff \x1b[31mred\x1b[0m \x1b]0;title\x07 ::group::x \x85\u2028 after"
"""Has each kind of it, and no line feed."""

_REFUSED = re.compile("[\0\ud800-\udfff]")
_STEERS = re.compile("[\x01-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]|::(?:end)?group::")


def refused(value: Any) -> list[str]:
    """Return the texts within `value` that PostgreSQL's JSONB refuses."""
    return [text for text in _texts(value) if _REFUSED.search(text)]


def unfit_for_logs(value: Any) -> list[str]:
    """Return the texts within `value` that steer a terminal or Airflow's log page, or are refused."""
    return [text for text in _texts(value) if _STEERS.search(text) or _REFUSED.search(text)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, BaseException):
        yield str(value)
        yield from _texts([value.__cause__, value.__context__])
