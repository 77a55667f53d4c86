# SPDX-License-Identifier: Apache-2.0
"""How a user's function is named: ``package.module:function``."""

from __future__ import annotations

import re

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def checked_import_path(value: str) -> str:
    """The path of a user's function.

    :raises ValueError: it is not an import path.
    """
    if not _IMPORT_PATH.fullmatch(value):
        raise ValueError(f"{value!r} is not an import path; write it as 'package.module:function'")
    return value
