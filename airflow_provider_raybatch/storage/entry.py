# SPDX-License-Identifier: Apache-2.0
"""What a listing says of a file."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One file of a listing.

    :param path: relative to the folder.
    :param version: changes when the content does.
    :param modified: epoch seconds of the last write, by the storage's clock.
    """

    path: str
    size: int
    version: str
    modified: float = field(default=0.0, compare=False)
