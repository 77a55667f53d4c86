# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a frozen process is frozen with it, but not in the middle of a transaction."""

from __future__ import annotations

import fcntl
import subprocess
import sys

import psutil

from .striking import INSIDE

_OWNER = """
import fcntl, time
file = open("lock", "w")
while True:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("locked", flush=True)
    time.sleep(0.5)
    fcntl.lockf(file, fcntl.LOCK_UN)
    time.sleep(0.1)
"""


def test_a_frozen_process_has_no_lock(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(INSIDE))
    from aimed_strike import freeze_without_locks

    command = [sys.executable, "-c", _OWNER]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            owner.stdout.readline()
            freeze_without_locks(owner.pid)
            assert psutil.Process(owner.pid).status() == psutil.STATUS_STOPPED
            with (tmp_path / "lock").open("w") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            owner.kill()
