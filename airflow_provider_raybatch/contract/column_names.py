# SPDX-License-Identifier: Apache-2.0
"""Which names the columns of a dataset may have that a user chooses."""

from __future__ import annotations

import re

from airflow_provider_raybatch.contract.base import shown

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_column_name(name: str) -> None:
    """Refuse a name that readers of the dataset can't write, or can't tell from another.

    :raises ValueError: one sentence, without the field's name.
    """
    if not name.strip():
        raise ValueError("a column's name is empty; give it at least one letter")
    if name != name.strip():
        raise ValueError(f"{shown(name)} begins or ends with white space; write {shown(name.strip())}")
    if found := _CONTROL.search(name):
        raise ValueError(f"{shown(name)} has the control character {found.group()!r}; remove it")
