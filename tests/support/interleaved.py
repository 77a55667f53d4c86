# SPDX-License-Identifier: Apache-2.0
"""A thread that is interrupted at each of its instructions in turn, as another thread may at any time."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interruption:
    """Once, before instruction `at` of functions of some names.

    :param what: is done then, in place of another thread. A call for a function that it ends in does not
        count.
    :param since: instructions count from when this is true.
    :ivar was_reached: whether there are so many.
    """

    def __init__(
        self, names: set[str], at: int, what: Callable[[], None], since: Callable[[], bool] = lambda: True
    ) -> None:
        self._names, self._left, self._what, self._since = names, at, what, since
        self.was_reached = False

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name not in self._names:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and self._since() and not self.was_reached:
            self.was_reached = self._left == 0
            self._left -= 1
            if self.was_reached:
                self._what()
        return self._trace

    @contextlib.contextmanager
    def of_new_threads(self) -> Iterator[None]:
        """Interrupt threads that start meanwhile."""
        threading.settrace(self._trace)
        try:
            yield
        finally:
            threading.settrace(sys.gettrace())  # type: ignore[arg-type]
