# SPDX-License-Identifier: Apache-2.0
"""Check once a minute, not only at the commit, that the destination is still this job's.

A driver that was frozen, or cut off from Airflow, may go on after another submission has claimed the
destination. What it pays for from then on is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

INTERVAL = 60.0
"""Seconds between two checks. Each lists the journal."""


class ClaimWatch:
    """Runs the checks, and keeps what they find.

    :param look: raises a :class:`RaybatchError` of class ``SUPERSEDED`` when another submission has claimed
        the destination. Other errors are left to the commit.
    """

    def __init__(self, look: Callable[[], None], interval: float = INTERVAL) -> None:
        self._look = look
        self._interval = interval
        self._ended = threading.Event()
        self._lost: RaybatchError | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Check in a separate thread: a slow store must not delay the job's deadline."""
        threading.Thread(target=self._run, name="raybatch-claim", daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()

    def check(self) -> None:
        """:raises RaybatchError: a check has found that the claim is lost."""
        if self._lost is not None:
            raise self._lost

    def _run(self) -> None:
        while True:
            try:
                self._look()
            except RaybatchError as error:
                if error.failure_class is FailureClass.SUPERSEDED:
                    self._lost = error
                    return
            if self._ended.wait(self._interval):
                return
