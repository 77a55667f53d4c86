# SPDX-License-Identifier: Apache-2.0
"""The driver's side of the control channel: its events, its followers' orders, and what ends it early.

That is its deadline, a stop, or no follower for `orphan_timeout`. Engines that run first write what is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, rows_kept
from airflow_provider_raybatch.contract.submission import (
    STOP_GRACE,
    STOP_GRACE_VARIABLE,
    FollowerCommand,
    order_package,
    read_order,
)
from airflow_provider_raybatch.job.control.private_package import stored

_EXIT_SECONDS = 3.0
_LOOK = 1.0
_OVERTIME = 25.0
"""Seconds in which a driver may end by itself; its followers give it 30."""


class EventWriter:
    """Writes events to the driver's log, signed as soon as the job's key is known."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._number = 0
        self._lock = threading.Lock()

    def sign(self, key: str) -> None:
        """Sign all further events with the job's key."""
        with self._lock:
            self._key = key

    def emit(self, event: events.Event) -> None:
        """Write an event for the Airflow side; without a key, as plain text."""
        event = event.model_copy(update={"at": round(time.time(), 1)})
        with self._lock:
            if self._key is None:
                text = event.timed_text()
            else:
                text = events.line(event, self._key, self._number)
                self._number += 1
            # In one call, so that no other output gets between text and line feed.
            print(f"{text}\n", end="", flush=True)


class Control:
    """Orders of the job's followers, and the lease that they renew.

    :param limits: the deadline and the lease that hold until an order arrives.
    :param emit: called with the last event of a driver that has to be ended.
    :param clock: monotonic seconds for the lease, since other machines' clocks may differ.
    """

    def __init__(
        self,
        limits: LimitArguments,
        emit: Callable[[events.Event], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = limits.deadline
        self._orphan_timeout = limits.orphan_timeout
        self._emit = emit
        self._clock = clock
        self._heard = clock()
        self._seen: FollowerCommand | None = None
        self._attempt = 0
        self._read: Callable[[], FollowerCommand | None] = lambda: None
        self._stopped = False
        self._drains = False
        self._progress: Progress | None = None
        self._ending = threading.Lock()

    def obey(self, order: FollowerCommand | None) -> None:
        """Apply the order in the store. Each order renews the lease once, whichever attempt sent it."""
        if order is None or order == self._seen:
            return
        self._seen = order
        self._heard = self._clock()
        # An earlier attempt may still follow: it renews the lease, but must not undo newer settings.
        if order.attempt >= self._attempt:
            self._attempt = order.attempt
            self._deadline, self._orphan_timeout = order.deadline, order.orphan_timeout

    def stop(self) -> None:
        """Ray asks the driver to end.

        :raises KeyboardInterrupt: no engine runs, so nothing has to be written first.
        """
        self._stopped = True
        if not self._drains:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def draining(self) -> Iterator[None]:
        """For the time in which engines run: a stop is left to :meth:`check`."""
        self._drains = True
        try:
            yield
        finally:
            self._drains = False
        if self._stopped:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """For the last step of a commit, which is short: whatever ends the driver early waits for it."""
        with self._ending, self.draining():
            yield

    def check(self, progress: Progress | None = None) -> None:
        """See whether the job may go on.

        :param progress: of its rows, if it writes any.
        :raises RaybatchError: the job must end.
        """
        self._progress = progress
        if self._stopped:
            raise RaybatchError("the job was stopped.", FailureClass.CANCELLED)
        late = self._late()
        if late is not None:
            raise late

    @property
    def is_late(self) -> bool:
        """Whether the job should have ended, but for what can't be left undone."""
        return self._late() is not None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """End a driver that is overdue and doesn't end by itself, whatever it is doing."""
        over = threading.Event()
        threading.Thread(target=self._watch, args=(over,), name="raybatch-control", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def listen(self, read: Callable[[], FollowerCommand | None]) -> None:
        """From now on, obey the orders that `read` finds, once a second."""
        self._read = read

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_LOOK):
            # A store without an answer is asked again; without orders, the lease runs out.
            with contextlib.suppress(Exception):
                self.obey(self._read())
            with self._ending:
                late = None if over.is_set() else self._late(_OVERTIME)
                if late is not None:
                    kind, known = late.failure_class, self._progress
                    text = str(late)
                    if known is not None:
                        text = f"{text.rstrip('.')}; {rows_kept(known.kept or 0, known.total, kind)}."
                    self._emit(events.Failed(failure_class=kind, message=text))
                    os._exit(1)

    def _late(self, overtime: float = 0.0) -> RaybatchError | None:
        if self._deadline is not None and time.time() >= self._deadline + overtime:
            return RaybatchError("the job's deadline passed.", FailureClass.TIMEOUT)
        if self._orphan_timeout and self._clock() - self._heard >= self._orphan_timeout + overtime:
            return RaybatchError(
                f"orphan_timeout: no task has followed the job for {self._orphan_timeout:,.0f} s, so it "
                "ended itself.",
                FailureClass.CANCELLED,
            )
        return None


def orders_for(key: str) -> Callable[[], FollowerCommand | None]:
    """Reads the latest order from the cluster's store."""
    package = order_package(key)

    def read() -> FollowerCommand | None:
        content = stored(package)
        return None if content is None else read_order(content, key)

    return read


def stop_on_sigterm(control: Control) -> None:
    """Hand Ray's SIGTERM to `control`, in place of Ray's own handler."""
    signal.signal(signal.SIGTERM, lambda number, frame: control.stop())


def seconds_to_drain() -> float:
    """How long a driver that is stopped may wait for its replicas before Ray kills it."""
    try:
        grace = float(os.environ.get(STOP_GRACE_VARIABLE, STOP_GRACE))
    except ValueError:
        grace = STOP_GRACE
    return max(0.0, grace - _EXIT_SECONDS)
