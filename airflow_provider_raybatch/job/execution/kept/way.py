# SPDX-License-Identifier: Apache-2.0
"""The way of a replica to the front end of a kept engine: by calls of the actor that keeps it."""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections import deque
from typing import Any

import ray

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.execution.kept.keeper import User

_HEARTBEAT = 2.0
_TOGETHER = 0.002
"""Seconds in which messages are gathered for one call."""
_GIVE_BACK_SECONDS = 60.0


class KeptFrontEnd:
    """See :class:`~airflow_provider_raybatch.job.engine.front_end.FrontEnd`.

    :param keeper: handle of a :class:`~airflow_provider_raybatch.job.execution.kept.keeper.KeptEngine`, which
        `user` has taken.
    :param seconds: for which the engine waits for its next user.
    :ivar steps: of what it loads, see :mod:`~airflow_provider_raybatch.job.engine.loading`.
    :ivar gpu_utilization: mean over its GPUs.
    """

    def __init__(self, keeper: Any, user: User, seconds: float) -> None:
        self._keeper = keeper
        self._user = user
        self._seconds = seconds
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._inbox: deque[bytes] = deque()
        self._has_ended = False
        self._death = EngineDeadError("The actor that kept the engine has ended.", killed=True)
        self.steps = 0
        self.gpu_utilization: float | None = None
        threading.Thread(target=self._send, name="raybatch-kept-engine", daemon=True).start()

    def send(self, message: Any) -> None:
        """See :class:`~airflow_provider_raybatch.job.engine.front_end.FrontEnd`."""
        if self._has_ended:
            raise BrokenPipeError
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """See :class:`~airflow_provider_raybatch.job.engine.front_end.FrontEnd`."""
        while not self._inbox:
            if self._has_ended:
                raise EOFError
            try:
                heard = ray.get(self._keeper.receive.remote(self._user))
            except (ray.exceptions.RayError, EngineDeadError) as error:
                self._lost(error)
                raise EOFError from None
            self._inbox.extend(heard.messages)
            self.steps, self.gpu_utilization = heard.steps, heard.gpu_utilization
        return pickle.loads(self._inbox.popleft())

    def end(self, is_open: bool) -> None:
        """See :class:`~airflow_provider_raybatch.job.engine.front_end.FrontEnd`."""
        if self._has_ended:
            return
        self._has_ended = True
        try:
            given = self._keeper.give_back.remote(self._user, self._seconds, is_open)
            ray.get(given, timeout=_GIVE_BACK_SECONDS)
        except ray.exceptions.RayError:
            self.kill()

    def kill(self) -> None:
        """See :class:`~airflow_provider_raybatch.job.engine.front_end.FrontEnd`."""
        if not self._has_ended:
            self._has_ended = True
            ray.kill(self._keeper)

    def death(self) -> EngineDeadError:
        """See :class:`~airflow_provider_raybatch.job.engine.front_end.FrontEnd`."""
        return self._death

    def _lost(self, error: Exception) -> None:
        cause = getattr(error, "cause", error)
        if isinstance(cause, EngineDeadError):
            self._death = cause

    def _send(self) -> None:
        while not self._has_ended:
            messages = self._waiting()
            try:
                ray.get(self._keeper.send.remote(self._user, messages))
            except ray.exceptions.RayError:
                return  # which the thread that receives finds out

    def _waiting(self) -> list[bytes]:
        messages = []
        try:
            messages.append(self._outbox.get(timeout=_HEARTBEAT))
            time.sleep(_TOGETHER)
            while True:
                messages.append(self._outbox.get_nowait())
        except queue.Empty:
            return messages
