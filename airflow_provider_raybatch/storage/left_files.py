# SPDX-License-Identifier: Apache-2.0
"""Temporary files on a node that need a name, so that a process that is killed leaves them.

What needs none is a ``tempfile.TemporaryFile``. Ray kills replicas as a matter of course, so a later process
deletes what they have left.
"""

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
_AGE = 7 * 86400.0
"""Seconds without a change after which a file may go. On a memory disk, writing to a mapped file is none,
and a process may live for days."""


def held_folder() -> Path:
    """Make a folder that is this process's until it ends.

    :raises OSError: the disk is full.
    """
    path = Path(tempfile.mkdtemp(prefix=_FOLDER))
    # The descriptor, and with it the lock, stays until the process has ended.
    fcntl.flock(os.open(path, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
    return path


def sweep() -> None:
    """Delete what processes of this user have left on this node. What can't be deleted stays."""
    folder = Path(tempfile.gettempdir())
    for path in (*folder.glob(f"{FILE}*"), *folder.glob(f"{_FOLDER}*")):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _AGE:
                continue
            if stat.S_ISREG(found.st_mode):
                path.unlink()
            elif stat.S_ISDIR(found.st_mode) and not _is_held(path):
                shutil.rmtree(path)


def _is_held(path: Path) -> bool:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False
