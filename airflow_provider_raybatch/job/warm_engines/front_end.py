# SPDX-License-Identifier: Apache-2.0
"""A replica's access to the front end of a warm engine, by calls of the engine's actor."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.engine_process.proxy import identity, opener
from airflow_provider_raybatch.job.engine_process.server import GONE, RESTS
from airflow_provider_raybatch.job.warm_engines.lease import GivenAwayError, Holder
from airflow_provider_raybatch.job.work import CheckedModel

REST = pickle.dumps([(0, "rest", None)])
SAYS_REST = bytes(ForkingPickler.dumps(RESTS))
"""Order and answer, as they go through the front end's pipe."""
_HEARTBEAT = 2.0
_TOGETHER = 0.002
"""Seconds in which messages are gathered for one call."""
_GIVE_BACK_SECONDS = 30.0
_LOST = (ray.exceptions.RayError, EngineDeadError, GivenAwayError)
"""What a call of the actor raises when the caller no longer holds its engine."""


@dataclass(frozen=True)
class Heard:
    """What `WarmEngineActor.receive` returns.

    :param messages: of the front end, pickled.
    :param loaded: see :mod:`~airflow_provider_raybatch.job.warm_engines.source`.
    :param gpu_utilization: mean since this holder has the engine, ``None`` without a GPU.
    """

    messages: list[bytes]
    loaded: int
    gpu_utilization: float | None


def post(front_end: OwnFrontEnd, *messages: bytes) -> None:
    """Pass messages on to a front end, if it is still there."""
    with contextlib.suppress(*GONE):  # the thread that receives finds out
        for message in messages:
            front_end.pass_on(message)


def to_open(model: CheckedModel) -> tuple[str, bytes]:
    """Identity and order for `WarmEngineActor.open_alone`."""
    order = True, opener(model.spec), (model.spec,)
    return identity(model.spec, model.files), pickle.dumps(order, pickle.HIGHEST_PROTOCOL)


class RemoteFrontEnd:
    """A :class:`~airflow_provider_raybatch.job.engine_process.front_end.FrontEnd` for a warm engine.

    :param actor: handle of a `WarmEngineActor` that `holder` has taken.
    :param seconds: for which the engine waits for its next holder.
    :ivar loaded: see :class:`Heard`, also for `gpu_utilization`.
    :ivar gpus: ids of its GPUs on its `node`, which has an id, too.
    """

    def __init__(self, actor: Any, holder: Holder, seconds: float) -> None:
        self._actor = actor
        self._holder = holder
        self._seconds = seconds
        self._outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._inbox: deque[bytes] = deque()
        self._has_ended = False
        self._death = EngineDeadError("The warm engine's actor has ended.", killed=True)
        self.loaded = 0
        self.gpus: list[str] = []
        self.node = ""
        self.gpu_utilization: float | None = None
        self._sender = threading.Thread(target=self._send, name="raybatch-warm-engine", daemon=True)
        self._sender.start()

    def begin(self, environment: dict[str, SecretStr], of_vllm: bool) -> None:
        """Let it import what its engine needs, unless it has.

        :param environment: variables of its processes.
        :raises EngineDeadError: the engine is lost.
        """
        self.gpus, self.node = self._call("begin", environment, of_vllm)

    def prepare(self, identity: str) -> None:
        """See :class:`FrontEnd`."""
        self._call("prepare", identity)

    def send(self, message: Any) -> None:
        """See :class:`FrontEnd`."""
        if self._has_ended:
            raise BrokenPipeError
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        """See :class:`FrontEnd`."""
        while not self._inbox:
            if self._has_ended:
                raise EOFError
            try:
                heard = self._call("receive")
            except EngineDeadError:
                raise EOFError from None
            self._inbox.extend(heard.messages)
            self.loaded, self.gpu_utilization = heard.loaded, heard.gpu_utilization
        return pickle.loads(self._inbox.popleft())

    def end(self, is_open: bool) -> None:
        """See :class:`FrontEnd`."""
        if self._has_ended:
            return
        self._has_ended = True
        given = self._actor.give_back.remote(self._holder, self._seconds, is_open)
        try:
            ray.get(given, timeout=_GIVE_BACK_SECONDS)
        except _LOST:
            self._actor.abandon.remote(self._holder)

    def kill(self) -> None:
        """See :class:`FrontEnd`."""
        if not self._has_ended:  # else it is given back, and another call could come before that one
            self._has_ended = True
            self._actor.abandon.remote(self._holder)

    def death(self) -> EngineDeadError:
        """See :class:`FrontEnd`."""
        return self._death

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return ray.get(getattr(self._actor, name).remote(self._holder, *arguments))
        except _LOST as error:
            cause = getattr(error, "cause", error)
            if isinstance(cause, EngineDeadError):
                self._death = cause
            elif isinstance(error, ray.exceptions.RayTaskError) and not isinstance(cause, GivenAwayError):
                self._death = EngineDeadError(f"The warm engine's actor failed ({cause}).")
            raise self._death from error

    def _send(self) -> None:
        with contextlib.suppress(EngineDeadError):
            while not self._has_ended:
                self._call("send", self._waiting())
            return
        self.kill()  # else the thread that receives would keep it alive

    def _waiting(self) -> list[bytes]:
        messages = []
        try:
            messages.append(self._outbox.get(timeout=_HEARTBEAT))
            time.sleep(_TOGETHER)
            while True:
                messages.append(self._outbox.get_nowait())
        except queue.Empty:
            return messages
