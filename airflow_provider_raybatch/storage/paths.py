# SPDX-License-Identifier: Apache-2.0
"""What may be given as paths to delete: they come from documents that may be damaged."""

from __future__ import annotations

from collections.abc import Iterable


def several(paths: Iterable[str]) -> list[str]:
    """Return the paths.

    :raises TypeError: it is one text, whose characters would each be taken for a path.
    :raises ValueError: one is empty, which is the folder itself.
    """
    if isinstance(paths, str):
        raise TypeError(f"{paths!r} is one path; give a list of paths.")
    wanted = list(paths)
    if "" in wanted:
        raise ValueError("An empty path names the folder itself, which is never deleted.")
    return wanted
