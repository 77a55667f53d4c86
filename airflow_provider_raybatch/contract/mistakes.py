# SPDX-License-Identifier: Apache-2.0
"""What a value must be, in plain words: pydantic's kinds of error as the end of "it must be ..."."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

_MUST_BE = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a dictionary",
    "mapping_type": "a dictionary",
    "list_type": "a list",
    "tuple_type": "a list",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
    "literal_error": "{expected}",
}
"""By pydantic's type of error, https://docs.pydantic.dev/latest/errors/validation_errors/."""
_CHOICE = re.compile(r"'([^']+)'")


def requirement(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What the value must be, such as ``it must be at least 1``.

    :param kind: pydantic's type of the error.
    :param message: pydantic's own, for a kind that has no words here.
    :param context: pydantic's, such as the bound.
    """
    if kind in _MUST_BE:
        return f"it must be {_MUST_BE[kind].format(**context)}"
    return f"{message[0].lower()}{message[1:]}"


def likeliest(kind: str, context: Mapping[str, Any], value: object) -> str | None:
    """Of several allowed texts, the one that `value` misspells."""
    if kind != "literal_error" or not isinstance(value, str):
        return None
    close = difflib.get_close_matches(value.strip().lower(), _CHOICE.findall(str(context["expected"])), n=1)
    return close[0] if close else None
