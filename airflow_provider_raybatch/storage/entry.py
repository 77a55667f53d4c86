# SPDX-License-Identifier: Apache-2.0
"""What a listing says of a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One file of a listing. `path` is relative to the folder; `version` changes when the content does."""

    path: str
    size: int
    version: str
