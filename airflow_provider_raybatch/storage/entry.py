# SPDX-License-Identifier: Apache-2.0
"""What a listing says of a file, and checks of paths, which may come from damaged documents."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.errors import StorageError


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


def inside(root: str, path: str) -> Path:
    """The file or folder `path` below `root`; `root` itself if it is empty.

    :raises StorageError: it leads out of there.
    """
    if path.startswith("/") or ".." in path.split("/"):
        text = f"{path!r} leads out of {root}; use a path inside of it."
        raise StorageError(text, FailureClass.USER_ERROR)
    return Path(root, path) if path else Path(root)
