# SPDX-License-Identifier: Apache-2.0
"""Runs code one file-system call at a time, by Python's audit events."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_CALLS = {"open", "os.rename", "os.link", "os.remove", "os.listdir", "os.scandir", "os.mkdir", "os.rmdir"}
_STEPPERS: dict[int, Stepper] = {}
_HUNG = 60.0


class Stepper:
    """A function in a thread that stops before each file-system call below `root`."""

    def __init__(self, root: str, function: Callable[[], Any]) -> None:
        self._root, self._function = root, function
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._free = False
        self.is_done = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._await(self._stopped)

    def step(self) -> None:
        """Do the next call, and stop before the one after it."""
        if not self.is_done:
            self._go.release()
            self._await(self._stopped)

    def finish(self) -> None:
        """Do all remaining calls; raise what the function raised."""
        self._free = True
        self.step()
        if self.error is not None:
            raise self.error

    def succeeded(self, refusal: type[Exception]) -> bool:
        """Do all remaining calls; return whether the function was not refused."""
        try:
            self.finish()
        except refusal:
            return False
        return True

    def _run(self) -> None:
        _STEPPERS[threading.get_ident()] = self
        try:
            self._function()
        except BaseException as error:
            self.error = error
        finally:
            del _STEPPERS[threading.get_ident()]
            self.is_done = True
            self._stopped.release()

    def before(self, path: object) -> None:
        if self._free or not f"{path}{os.sep}".startswith(self._root + os.sep):
            return
        self._stopped.release()
        self._await(self._go)

    @staticmethod
    def _await(turn: threading.Semaphore) -> None:
        assert turn.acquire(timeout=_HUNG), "the other side hangs"


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _CALLS and (stepper := _STEPPERS.get(threading.get_ident())) is not None:
        stepper.before(arguments[0])


sys.addaudithook(_hook)  # it stays: Python can't remove an audit hook
