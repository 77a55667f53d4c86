# SPDX-License-Identifier: Apache-2.0
"""Names on local disks that survive a power loss: a synced file is lost where its folder was not synced."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

_NO_SUCH_CALL = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM})
"""Errors of file systems that can't sync folders, and of folders that may not be read."""
_NAMED: set[Path] = set()
"""Folders whose own names this process has synced: each sync flushes the disk."""


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk.

    :raises OSError: the disk fails. A file system that can't sync folders is not an error.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
    finally:
        os.close(number)


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, with names that survive a power loss.

    An existing one may be the work of a process that died before it could sync the name. So each name is
    synced once a process.

    :raises OSError: it can't be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    for one in (path, *path.parents):
        if one in _NAMED or one == one.parent:
            break
        sync_folder(one.parent)
        _NAMED.add(one)


def remove_empty(path: Path) -> None:
    """Remove a folder. :raises OSError: it is not empty, or can't be removed."""
    path.rmdir()
    _NAMED.discard(path)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it. :raises OSError: it can't be removed."""
    shutil.rmtree(path)
    _NAMED.difference_update([one for one in tuple(_NAMED) if path in (one, *one.parents)])
