# SPDX-License-Identifier: Apache-2.0
"""The actor that keeps an engine: it outlives its job, holds the GPUs, and passes messages to the front end.

It has one user at a time, and ends at its time, when others wait for its GPUs, when its user is silent or has
died, and when its engine has. So an engine that may be broken is never handed on.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine import loading
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.engine.gpu import GpuMeter
from airflow_provider_raybatch.job.engine.host import GONE, RESTS
from airflow_provider_raybatch.job.execution.kept.demand import waits_for

SILENT = 15.0
"""Seconds without a call after which the user counts as dead; it calls every two."""
_LONGEST_IMPORT = 600.0
_LONGEST_WAIT = 2.0
_MORE = 0.002
"""Seconds in which further messages are waited for, so that a call takes several of a busy engine."""
_LOOKS = (1.0, 2.0)
"""Seconds between two looks, by chance, so that engines do not all ask Ray at the same time."""
_LAST_WORD = 10.0
"""Seconds for the user to hear of the engine's death."""
_END_SECONDS = 60.0
_REST, _END = pickle.dumps([(0, "rest", None)]), pickle.dumps(None)
_RESTS = bytes(ForkingPickler.dumps(RESTS))
"""As they go through the front end's pipe."""


@dataclass(frozen=True)
class User:
    """The replica that has the engine.

    :param actor: id of its actor, which Ray starts again after a death.
    :param process: its process.
    """

    actor: str
    process: str


@dataclass(frozen=True)
class Heard:
    """What a call of :meth:`KeptEngine.receive` brings.

    :param messages: of the front end, pickled.
    :param steps: see :mod:`~airflow_provider_raybatch.job.engine.loading`.
    :param gpu_utilization: mean since the engine is kept, ``None`` without a GPU.
    """

    messages: list[bytes]
    steps: int
    gpu_utilization: float | None


class GivenAwayError(Exception):
    """The caller is not the user of this engine, or is no longer."""


class KeptEngine:
    """The actor's class.

    :param title: what it is, for people.
    :param user: who made it.
    """

    def __init__(self, title: str, user: User) -> None:
        self._title = title
        self._user: User | None = user
        self._heard_of_user = time.monotonic()
        self._ends_at = 0.0
        self._seconds = 0.0
        self._has_engine = self._is_starting = self._is_ending = False
        self._death: EngineDeadError | None = None
        self._messages: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._resources = {name for name, amount in _resources().items() if amount > 0}
        self._actor = ray.get_runtime_context().current_actor
        self._front_end: OwnFrontEnd | None = None
        self._is_gone = threading.Event()
        self._gpu, self._steps = GpuMeter(), 0
        threading.Thread(target=self._watch, name="raybatch-watch", daemon=True).start()

    def begin(self, user: User, environment: dict[str, SecretStr], of_vllm: bool) -> None:
        """Start the process of the front end.

        :param environment: variables of its processes, see
            :func:`~airflow_provider_raybatch.job.control.private_package.environment`. Not the constructor's,
            since Ray keeps what an actor was made with as long as it lives.
        :param of_vllm: whether it is an engine of vLLM's.
        :raises GivenAwayError: the caller did not make this actor, or was silent.
        """
        self._check(user)
        set_environment(environment)
        self._is_starting = True
        try:
            self._front_end = OwnFrontEnd(of_vllm)
        finally:
            self._heard_of_user, self._is_starting = time.monotonic(), False
        hear = threading.Thread(target=self._hear, args=(self._front_end,), name="raybatch-front-end")
        hear.daemon = True
        hear.start()

    def __repr__(self) -> str:
        """As Ray's dashboard shows the actor."""
        return f"KeptEngine({self._title})"

    def take(self, user: User) -> bool:
        """Become its user.

        :returns: whether it was free, or is this one's already.
        """
        with self._changed:
            before = self._user
            if before is None and self._death is None:
                self._user, self._gpu = user, GpuMeter()
            if self._user == user:
                self._heard_of_user = time.monotonic()
                return True
        if before is not None and before.actor == user.actor:
            self.end(at_once=True)  # its former process died, and may have died of this engine
        return False

    def send(self, user: User, messages: Sequence[bytes]) -> None:
        """Pass messages on to the front end.

        :raises GivenAwayError: the caller has the engine no longer.
        """
        self._check(user)
        self._post(*messages)

    def receive(self, user: User) -> Heard:
        """Wait a little for messages of the front end.

        :raises GivenAwayError: the caller has the engine no longer.
        :raises EngineDeadError: the front end has ended.
        """
        self._check(user)
        with self._changed:
            if self._changed.wait_for(
                lambda: self._messages or self._death or self._user != user, _LONGEST_WAIT
            ):
                self._changed.wait(_MORE)
            if self._user != user and self._death is None:
                raise GivenAwayError("The kept engine has another user.")
            if self._death is not None and not self._messages:
                raise self._death
            messages = list(self._messages)
            self._messages.clear()
        return Heard(messages, self._steps, self._gpu.mean)

    def give_back(self, user: User, seconds: float, is_open: bool) -> None:
        """Let the engine rest for the next user.

        :param seconds: for which it waits at most; 0 ends it.
        :param is_open: whether the user has opened it.
        """
        self._check(user)
        if seconds <= 0 or not (is_open or self._has_engine):
            self.end()
            return
        self._seconds = seconds
        if is_open:
            self._post(_REST)
        else:
            self._rests()

    def state(self) -> dict[str, Any]:
        """For people: what it is, whether it has a user, and the seconds until it ends."""
        with self._changed:
            free = self._user is None and self._death is None
            left = round(max(0.0, self._ends_at - time.monotonic())) if free else None
        node = ray.get_runtime_context().get_node_id()
        return {"engine": self._title, "is_free": free, "ends_in": left, "gpus": self._gpus(), "node": node}

    def end(self, at_once: bool = False) -> None:
        """End the engine, and this actor.

        :param at_once: whether the engine's processes are killed: no one needs what they do.
        """
        with self._changed:
            if self._is_ending:
                return
            self._is_ending, self._user = True, None
            self._death = self._death or EngineDeadError("The kept engine was ended.")
            self._changed.notify_all()
        threading.Thread(target=self._end, args=(at_once,), name="raybatch-end", daemon=True).start()

    def _end(self, at_once: bool) -> None:
        if self._front_end is not None:
            if at_once:
                self._front_end.kill()
            else:
                self._post(_END)
            self._is_gone.wait(_END_SECONDS)
            self._front_end.kill()
        ray.kill(self._actor)

    def _post(self, *messages: bytes) -> None:
        assert self._front_end is not None
        with contextlib.suppress(*GONE):  # which the thread that hears finds out
            for message in messages:
                self._front_end.pass_on(message)

    def _check(self, user: User) -> None:
        with self._changed:
            if self._user != user:
                raise GivenAwayError("The kept engine has another user, or has ended.")
            self._heard_of_user = time.monotonic()

    def _rests(self) -> None:
        with self._changed:
            self._user = None
            self._messages.clear()
            self._has_engine = True
            self._ends_at = time.monotonic() + self._seconds
            self._changed.notify_all()

    def _hear(self, front_end: OwnFrontEnd) -> None:
        try:
            while True:
                message = front_end.connection.recv_bytes()
                if message == _RESTS:
                    self._rests()
                    continue
                with self._changed:
                    self._messages.append(message)
                    self._changed.notify_all()
        except (*GONE, OSError):
            pass
        death = front_end.death()  # waits for its end, in this thread alone
        self._is_gone.set()
        with self._changed:
            self._death = self._death or death
            self._changed.notify_all()
        time.sleep(_LAST_WORD)
        self.end()

    def _watch(self) -> None:
        waited = False
        while True:
            time.sleep(random.uniform(*_LOOKS))
            self._gpu.sample()
            self._steps = loading.steps()
            # Ray also tells of what it is about to place, so once is not enough.
            waits = self._user is None and waits_for(self._resources)
            with self._changed:
                now, is_free = time.monotonic(), self._user is None
                if is_free:
                    ends = now >= self._ends_at or (waits and waited)
                else:
                    # Its user waits while vLLM is imported, for half a minute and more.
                    silent = _LONGEST_IMPORT if self._is_starting else SILENT
                    ends = now - self._heard_of_user > silent
                if ends:
                    self._user = _NOBODY
            if ends:
                self.end(at_once=not is_free)
                return
            waited = waits

    def _gpus(self) -> float:
        return float(_resources().get("GPU", 0.0))


_NOBODY = User("", "")


def _resources() -> dict[str, float]:
    return dict(ray.get_runtime_context().get_assigned_resources())
