# SPDX-License-Identifier: Apache-2.0
"""Look at the machine again and again while something runs."""

from __future__ import annotations

import threading
from types import TracebackType


class Sampled:
    """A context manager whose `sample` is called in a thread of its own, and `show` at the end.

    :param interval: seconds between two calls of `sample`.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> None:
        """Look once."""
        raise NotImplementedError

    def show(self) -> None:
        """Print what was seen."""
        raise NotImplementedError

    def __enter__(self) -> Sampled:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self.show()

    def _run(self) -> None:
        while not self._is_over.wait(self._interval):
            self.sample()
