# SPDX-License-Identifier: Apache-2.0
"""Whether the destination is still this job's: asked once a minute beside the job, not only at its commit.

A driver that was frozen, or cut off from Airflow, may go on after another submission has claimed the
destination. What it pays for from then on is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

INTERVAL = 60.0
"""Seconds between two looks, each of which lists the journal."""


class ClaimWatch:
    """What the looks have found.

    :param look: raises a :class:`RaybatchError` of class ``SUPERSEDED`` when another submission has claimed
        the destination. Its other errors say nothing about that, and are left to the commit.
    """

    def __init__(self, look: Callable[[], None], interval: float = INTERVAL) -> None:
        self._look = look
        self._interval = interval
        self._ended = threading.Event()
        self._lost: RaybatchError | None = None

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look from a thread of its own: a store that answers late must not hold up the job's deadline."""
        threading.Thread(target=self._run, name="raybatch-claim", daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()

    def check(self) -> None:
        """:raises RaybatchError: a look has found that the claim is lost."""
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
