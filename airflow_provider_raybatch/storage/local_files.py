# SPDX-License-Identifier: Apache-2.0
"""Files of this node: names that survive a power loss, and temporary files of processes that were killed.

A synced file is lost where its folder was not synced. What a killed process leaves, a later one deletes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
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


FILE = "raybatch-begun-"
"""How names of files begin."""
_FOLDER = "raybatch-engine-"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SHARED_MEMORY = Path("/dev/shm")
_AGE = 7 * 86400.0
"""Seconds without a change after which a file is deleted. On a memory disk, writes to a mapped file do not
count as changes, and a process may live for days."""
_NEW = 60.0
"""Seconds in which a folder may not be held yet."""


def held_folder() -> Path:
    """Make a folder that is this process's until it ends. :raises OSError: the disk is full."""
    path = Path(tempfile.mkdtemp(prefix=_of_this_node()))
    # The descriptor, and with it the lock, stays until the process has ended.
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
    return path


def _of_this_node() -> str:
    """How names of this node's folders begin: nodes with one `TMPDIR` on NFS don't see each other's locks."""
    try:
        node = _BOOT.read_text()[:4]
    except OSError:  # not Linux, or hidden
        node = ""
    return f"{_FOLDER}{node}"


def own_prefix(folder: Path) -> str:
    """How names of shared memory begin that go with a held folder; empty for another folder."""
    return f"r{folder.name[-8:]}" if folder.name.startswith(_FOLDER) else ""


def sweep() -> None:
    """Delete what processes of this user have left on this node. What can't be deleted stays."""
    temporary = Path(tempfile.gettempdir())
    for path in temporary.glob(f"{FILE}*"):
        with contextlib.suppress(OSError):
            if stat.S_ISREG(_mode_if_left(path, _AGE)):
                path.unlink()
    for path in temporary.glob(f"{_of_this_node()}*"):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(_mode_if_left(path, _NEW)) and not _is_held(path):
                for left in _shared_memory(path):
                    left.unlink()
                shutil.rmtree(path)


def _mode_if_left(path: Path, age: float) -> int:
    """The mode of a file of this user without changes for `age` seconds; 0 for anything else."""
    found = path.lstat()
    return found.st_mode if found.st_uid == os.getuid() and time.time() - found.st_mtime >= age else 0


def _shared_memory(folder: Path) -> list[Path]:
    prefix = own_prefix(folder)
    return [*_SHARED_MEMORY.glob(f"{prefix}*"), *_SHARED_MEMORY.glob(f"sem.{prefix}-*")]


def _is_held(path: Path) -> bool:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False
