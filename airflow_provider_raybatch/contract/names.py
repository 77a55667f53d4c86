# SPDX-License-Identifier: Apache-2.0
"""Names that a user chooses: of columns of a dataset, of functions, and what no name or path may have.

A refusal is a ``ValueError``: one sentence, without the field's name.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import AfterValidator

from airflow_provider_raybatch.contract.text import shown_uri

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check_characters(name: str) -> None:
    """Refuse white space at an end, and characters that can't be seen."""
    if name != name.strip():
        raise ValueError(
            f"{shown_uri(name)!r} begins or ends with white space; write {shown_uri(name.strip())!r}"
        )
    if found := _CONTROL.search(name):
        raise ValueError(f"{shown_uri(name)!r} has the control character {found.group()!r}; remove it")


def ascii_name(name: str) -> str:
    """`name` where only ASCII is taken: ``tägliche`` becomes ``tagliche``, and ``日`` becomes ``u65e5``."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return "".join(c if c.isascii() else f"u{ord(c):04x}" for c in plain)


def checked_column_name(name: str) -> str:
    """A column's name, unless readers of the dataset can't write it, or can't tell it from another."""
    if not name.strip():
        raise ValueError("a column's name is empty; give it at least one letter")
    check_characters(name)
    return name


def is_import_path(value: object) -> bool:
    """Whether `value` is written as ``package.module:name``."""
    return isinstance(value, str) and _IMPORT_PATH.fullmatch(value) is not None


def _checked_import_path(value: str) -> str:
    if not is_import_path(value):
        raise ValueError(f"{value!r} is not an import path; write it as 'package.module:function'")
    return value


ColumnName = Annotated[str, AfterValidator(checked_column_name)]
"""A field that holds the name of a column."""

ImportPath = Annotated[str, AfterValidator(_checked_import_path)]
"""A field that names a user's function: ``package.module:function``."""
