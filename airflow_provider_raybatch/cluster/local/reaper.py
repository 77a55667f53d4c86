# SPDX-License-Identifier: Apache-2.0
"""A small process that owns a private Ray and ends it when its own owner ends, however that happens.

It holds the read end of a pipe whose write end only the owner has: end of file means that the owner closed it
or is gone, SIGKILL included. It runs as a file, with nothing but the standard library::

    reaper.py --pipe FD --home FOLDER -- COMMAND...

The command may leave daemons behind, as ``ray start`` does. Its output goes to ``FOLDER/start.log``, its exit
code to ``FOLDER/exit-code``. At the end it ends every process that came from the command, and removes the
folder. To keep them in sight it adopts orphans, which only Linux offers.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOG_FILE = "start.log"
EXIT_CODE_FILE = "exit-code"

_TERM_SECONDS = 3.0
_KILL_SECONDS = 5.0
_POLL_SECONDS = 0.5
_STEP_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


def main(arguments: list[str]) -> None:
    """Start the command, wait for the pipe's end of file, clean up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    # Orphans (Ray's daemons, workers, engines) become children of this process instead of init's.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_end.set())
    signal.signal(signal.SIGINT, lambda number, frame: told_to_end.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with (given.home / LOG_FILE).open("wb") as log:
            started = subprocess.Popen(
                given.command, cwd=given.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while not told_to_end.is_set() and _owner_lives(given.pipe):
            for pid, code in _reap():
                if pid == started.pid:
                    (given.home / EXIT_CODE_FILE).write_text(str(code))
    finally:
        _end_descendants()
        shutil.rmtree(given.home, ignore_errors=True)


def _owner_lives(pipe: int) -> bool:
    """Whether the pipe has not come to its end of file; asked for as long as a pause takes."""
    readable, _, _ = select.select([pipe], [], [], _POLL_SECONDS)
    return not readable or os.read(pipe, 1) != b""


def _end_descendants() -> None:
    """SIGTERM to all, and SIGKILL to whatever is left or comes up, until no process is left."""
    for pid in _descendants():
        _send(pid, signal.SIGTERM)
    term_until = time.monotonic() + _TERM_SECONDS
    while _descendants() and time.monotonic() < term_until:
        time.sleep(_STEP_SECONDS)
    kill_until = time.monotonic() + _KILL_SECONDS
    while (left := _descendants()) and time.monotonic() < kill_until:
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(_STEP_SECONDS)


def _descendants() -> list[int]:
    """Living processes below this one, the nearest first."""
    _reap()
    children: dict[int, list[int]] = {}
    for pid, parent in _processes():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(os.getpid(), ()))
    for pid in found:  # grows while it is walked
        found.extend(children.get(pid, ()))
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """(pid, parent's pid) of every living process of this host; see proc(5)."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything.
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:  # it has ended, or is another user's and hidden, as hidepid of proc(5) does
            continue
        if state not in {"Z", "X"}:
            yield int(folder.name), int(parent)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> list[tuple[int, int]]:
    """Collect ended children, adopted ones included; (pid, exit code) of each."""
    ended: list[tuple[int, int]] = []
    with suppress(ChildProcessError):
        while (child := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((child[0], os.waitstatus_to_exitcode(child[1])))
    return ended


if __name__ == "__main__":
    main(sys.argv[1:])
