# SPDX-License-Identifier: Apache-2.0
"""What may be given as paths to a folder: names inside of it, never one that leads out.

Folders are deleted by their paths, and paths come from documents that may be damaged: a ``/`` among them
would delete what is not ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.errors import StorageError


def inside(root: str, path: str) -> Path:
    """Return where a path of a folder lies on the disk; the empty path is the folder itself.

    :raises StorageError: it leads out of the folder.
    """
    if path.startswith("/") or ".." in path.split("/"):
        raise StorageError(f"{path!r} leads out of {root}; use a path inside of it.", FailureClass.USER_ERROR)
    return Path(root, path) if path else Path(root)


def several(paths: Iterable[str]) -> list[str]:
    """Return the paths that are to be deleted.

    :raises TypeError: it is one text, whose characters would each be taken for a path.
    :raises ValueError: one is empty, which is the folder itself.
    """
    if isinstance(paths, str):
        raise TypeError(f"{paths!r} is one path; give a list of paths.")
    wanted = list(paths)
    if "" in wanted:
        raise ValueError("An empty path names the folder itself, which is never deleted.")
    return wanted
