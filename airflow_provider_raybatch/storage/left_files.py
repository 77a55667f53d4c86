# SPDX-License-Identifier: Apache-2.0
"""Temporary files with a name, which a killed process leaves on its node; a later process deletes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

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
