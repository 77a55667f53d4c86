# SPDX-License-Identifier: Apache-2.0
"""Disks of a few MiB for the destinations of runs, which a run can fill.

The harness mounts them in its own mount namespace, see :func:`in_own_namespace`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

SIZE = 64 * 2**20
FULL = 30.0
"""Seconds for which a disk stays full."""
_ROOM = 48 * 1024
_MARK = "CHAOS_OWN_NAMESPACE"


def in_own_namespace(module: str, arguments: Sequence[str]) -> None:
    """Restart this program in a namespace where it may mount disks, if the machine allows that."""
    alone = ["unshare", "--map-root-user", "--mount"]
    if os.environ.get(_MARK) or shutil.which(alone[0]) is None:
        return
    if subprocess.run([*alone, "true"], check=False, capture_output=True).returncode == 0:
        os.environ[_MARK] = "1"
        os.execvp(alone[0], [*alone, sys.executable, "-m", module, *arguments])


def mount(folder: Path) -> None:
    """Mount a new disk at `folder`.

    :raises OSError: this machine does not allow it.
    """
    if not os.environ.get(_MARK):
        raise OSError("this machine does not allow a small disk to be mounted")
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=True)


def unmount(folder: Path) -> None:
    """Unmount the disk, even if it is in use."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, choice: float) -> None:
    """Leave little room on the disk, and free it again after a while.

    :param choice: amount of room, 0 to 1.
    """
    filler = folder / ".filler"
    room = int(choice * _ROOM)
    # Unbuffered, so that bytes that don't fit are dropped: the job may have written since the disk was
    # checked.
    with filler.open("wb", buffering=0) as file:
        file.write(bytes(max(0, shutil.disk_usage(folder).free - room)))
    again = threading.Timer(FULL, filler.unlink, kwargs={"missing_ok": True})
    again.daemon = True
    again.start()
