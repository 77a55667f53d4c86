# SPDX-License-Identifier: Apache-2.0
"""The actor of a warm engine: it outlives its job, holds the GPUs, and passes messages to the front end.

It ends with its front end, when its holder is silent or has died, and when the lease says so. So an engine
that may be broken is never handed on.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.job.control.private_package import set_environment
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine.gpu import GpuMeter, assigned
from airflow_provider_raybatch.job.engine_process.front_end import OwnFrontEnd
from airflow_provider_raybatch.job.engine_process.proxy import call_apart
from airflow_provider_raybatch.job.engine_process.server import GONE
from airflow_provider_raybatch.job.warm_engines.demand import should_evict
from airflow_provider_raybatch.job.warm_engines.front_end import REST, SAYS_REST, Heard, post
from airflow_provider_raybatch.job.warm_engines.lease import (
    LONGEST_START,
    EngineLease,
    GivenAwayError,
    Holder,
)
from airflow_provider_raybatch.job.warm_engines.registry import WarmEngineRegistry, WarmEngineState
from airflow_provider_raybatch.job.warm_engines.source import Measurements

_LONGEST_WAIT = 2.0
_MORE = 0.002
"""Seconds in which further messages are waited for, so that a call takes several of a busy engine."""
_CHECK_EVERY = (1.0, 2.0)
"""Range of the random seconds between two checks, so that engines do not all ask Ray at the same time."""
_ANSWER_SECONDS = 30.0
"""For an idle engine to answer before it is opened again; one that does not hangs."""
_DEATH_NOTICE = 10.0
"""Seconds in which the holder learns of the engine's death."""
_END_SECONDS = 60.0


class WarmEngineActor:
    """The actor's class. What its holder calls raises :class:`GivenAwayError` for any other caller.

    :param title: what it is, for people.
    :param maker: see :class:`EngineLease`.
    """

    def __init__(self, title: str, maker: str = "") -> None:
        self._title = title
        self._lease = EngineLease(time.monotonic(), maker)
        self._changed = threading.Condition()
        """Guards the lease, the messages and the front ends."""
        self._posting = threading.Lock()
        """Held while a message of the holder is passed on, so that none comes after the order to rest."""
        self._preparing = threading.Lock()
        """Held while a front end is started or made ready for the holder."""
        self._asking = threading.Lock()
        """Held during :meth:`ask`, so that calls that hang block one thread of the actor."""
        self._messages_are: Literal["questions", "the order to open", "calls"] = "questions"
        """What the holder sends next."""
        self._front_end: OwnFrontEnd | None = None
        """The process that the holder talks to."""
        self._idle: OwnFrontEnd | None = None
        """One with an idle engine that the present holder has not opened."""
        self._answered: OwnFrontEnd | None = None
        """The one that has answered last while its engine was idle."""
        self._identity = ""
        """Digest of all that decides the engine."""
        self._of_vllm = True
        self._is_ending = False
        self._death: EngineDeadError | None = None
        self._messages: deque[bytes] = deque()
        context = ray.get_runtime_context()
        self._actor, self._node = context.current_actor, context.get_node_id()
        self._name, self._gpus = context.get_actor_name(), assigned(context)
        self._amounts = {name: float(one) for name, one in context.get_assigned_resources().items() if one}
        self._measured = Measurements()
        threading.Thread(target=self._watch, name="raybatch-watch", daemon=True).start()

    def __repr__(self) -> str:
        """As Ray's dashboard shows the actor."""
        return f"WarmEngineActor({self._title})"

    # For pools and for other warm engines.

    def state(self) -> WarmEngineState:
        """What it is, and whether it has a holder."""
        with self._changed:
            lease = self._lease
            since, ends_in = lease.rests(time.monotonic()) if lease.is_free else (0.0, 0.0)
            return WarmEngineState(
                self._title,
                is_free=lease.is_free,
                is_ending=lease.is_ended,
                is_used=lease.is_used,
                since=since,
                ends_in=ends_in,
                node=self._node,
                amounts=self._amounts,
                reserved_for=lease.reserved_for,
            )

    def take(self, holder: Holder, maker: str = "") -> bool:
        """Give it to a holder.

        :param maker: of the holder's job.
        :returns: whether it was free, or is this one's already.
        """
        gpu = GpuMeter()
        with self._changed:
            was_free, is_holders = self._lease.is_free, self._lease.take(holder, maker, time.monotonic())
            if was_free and is_holders:
                self._messages.clear()
                self._messages_are = "questions"
                self._measured.gpu = gpu
            return is_holders

    def decline(self, holder: Holder) -> None:
        """Take it back from a holder that has never heard of it."""
        with self._changed:
            self._lease.decline(holder)

    def abandon(self, holder: Holder) -> None:
        """End it, if this is its holder, which has died or does not trust it."""
        with self._changed:
            is_holders = self._lease.is_of(holder)
        if is_holders:
            self.end(at_once=True)

    def end_if_free(self) -> bool:
        """End it, if it has no holder.

        :returns: whether it does.
        """
        with self._changed:
            was_free, ends = self._lease.is_free, not (self._lease.is_used or self._lease.is_ended)
            if ends:
                self._lease.end()
        if ends:
            self.end(at_once=not was_free)  # one that still starts hears of nothing until it has
        return ends

    def ask(
        self, seconds: float, function: Callable[..., Any], *arguments: Any
    ) -> tuple[Any, Exception | None] | None:
        """Call a function for any job in a new process, which has imported what the engine needs.

        It uses neither the engine nor its lease nor the holder's messages.

        :param seconds: after which the process is killed.
        :returns: what the function returned, or raised; ``None`` while another call runs.
        :raises EngineDeadError: the process has ended before.
        """
        if not self._asking.acquire(blocking=False):
            return None
        try:
            return call_apart(self._of_vllm, seconds, function, *arguments)
        finally:
            self._asking.release()

    # For its holder.

    def begin(
        self, holder: Holder, environment: dict[str, SecretStr], of_vllm: bool
    ) -> tuple[list[str], str]:
        """Start the process of the front end, if there is none.

        :param environment: variables of its processes. Not the constructor's argument: Ray stores those as
            long as the actor lives.
        :param of_vllm: whether it is an engine of vLLM's.
        :returns: ids of its GPUs, and of its node.
        """
        with self._waited_for(holder):
            set_environment(environment)
            self._of_vllm = of_vllm
            if self._idle is None and self._front_end is None:
                self._start()
        return self._gpus, self._node

    def send(self, holder: Holder, messages: Sequence[bytes]) -> None:
        """Pass messages on to the front end. While none is opened, it is one without an engine."""
        if messages and self._front_end is None:
            with self._waited_for(holder):
                self._start()
        with self._posting:
            self._check(holder)
            if self._front_end is not None:
                post(self._front_end, *messages)
            if messages and self._messages_are == "the order to open":
                self._messages_are = "calls"

    def prepare(self, holder: Holder, identity: str) -> None:
        """Let the next message open the idle engine, if it is equal. Else end it with its process.

        :param identity: digest of all that decides the engine.
        :raises EngineDeadError: the idle engine does not answer. This actor ends with it.
        """
        with self._waited_for(holder):
            if self._idle is not None:
                self._ask(self._idle)
            with self._changed:
                self._check(holder)  # it may have left meanwhile
                idle, self._idle = self._idle, None
                fresh = self._front_end
                is_equal = idle is not None and identity == self._identity
                if is_equal:
                    self._front_end = idle
                self._identity = identity
            if is_equal and fresh is not None:
                fresh.kill()
            elif not is_equal and idle is not None:
                idle.end(is_open=True)
            if self._front_end is None:
                self._start()
            self._messages_are = "the order to open"

    def receive(self, holder: Holder) -> Heard:
        """Wait a little for messages of the front end.

        :raises EngineDeadError: the front end has ended.
        """
        self._check(holder)
        with self._changed:
            if self._changed.wait_for(
                lambda: self._messages or self._death or not self._lease.is_of(holder), _LONGEST_WAIT
            ):
                self._changed.wait(_MORE)
            if self._death is not None and not self._messages:
                raise self._death
            if not self._lease.is_of(holder):
                raise GivenAwayError("The warm engine has another holder.")
            messages, self._messages = list(self._messages), deque()
        return Heard(messages, self._measured.loaded, self._measured.gpu.mean)

    def give_back(self, holder: Holder, seconds: float, is_open: bool) -> None:
        """Let the engine become idle for the next holder.

        :param seconds: for which it waits at most; 0 ends it.
        :param is_open: whether the holder has opened it.
        """
        with self._posting:
            with self._changed:
                self._lease.give_back(holder, seconds, time.monotonic())
                self._messages.clear()
                keeps = seconds > 0 and (is_open or self._idle is not None)
            if keeps and is_open and self._front_end is not None:
                post(self._front_end, REST)
        if not keeps:
            self.end()
        if not is_open:
            self._stay_idle()

    def open_alone(self, holder: Holder, seconds: float, identity: str, order: bytes) -> None:
        """Open the engine for the next holder, if it is not open yet: the job of this one has ended.

        Returns before it is open.

        :param seconds: for which it waits then.
        :param identity: see :meth:`prepare`.
        :param order: to open it, as the holder would send it.
        """
        with self._posting, self._changed:
            self._lease.give_back(holder, seconds, time.monotonic(), LONGEST_START)
            self._messages.clear()
        threading.Thread(target=self._open_alone, args=(identity, order), daemon=True).start()

    # The actor itself.

    def end(self, at_once: bool = False) -> None:
        """End the engine, and this actor.

        :param at_once: whether the engine's processes are killed, since their results are not needed.
        """
        with self._changed:
            self._lease.end()
            is_first, self._is_ending = not self._is_ending, True
            self._death = self._death or EngineDeadError("The warm engine was ended.", killed=True)
            self._changed.notify_all()
        if is_first:  # whatever hangs then, it must not hold a GPU
            longest = threading.Timer(2 * _END_SECONDS, _leave)
            longest.daemon = True
            longest.start()
            threading.Thread(target=self._end, name="raybatch-end", daemon=True).start()
        if at_once:
            for front_end in self._front_ends():
                front_end.kill()

    def _end(self) -> None:
        for front_end in self._front_ends():
            front_end.end(is_open=True)
        try:
            ray.kill(self._actor)
        except ray.exceptions.RayError:
            _leave()

    def _open_alone(self, identity: str, order: bytes) -> None:
        with self._preparing:  # what the holder has begun to wait for is done
            if self._idle is not None:  # the holder had not come to open it
                self._stay_idle()
            elif self._front_end is None:  # nor to say with which environment
                self.end()
            else:
                if self._messages_are != "calls":
                    self._identity = identity
                    post(self._front_end, order)
                post(self._front_end, REST)

    def _stay_idle(self) -> None:
        """The holder has not opened the idle engine, if there is one: it asked, or failed to open one."""
        with self._changed:
            asked, self._front_end = self._front_end, None
        if asked is not None:
            asked.kill()
        with self._changed:
            self._lease.set_idle(time.monotonic())

    def _front_ends(self) -> list[OwnFrontEnd]:
        return [one for one in (self._front_end, self._idle) if one is not None]

    @contextlib.contextmanager
    def _waited_for(self, holder: Holder) -> Iterator[None]:
        with self._changed:
            self._lease.begin_wait(holder, time.monotonic())
        try:
            with self._preparing:
                self._check(holder)  # it is the holder still
                yield
        finally:
            with self._changed:
                self._lease.end_wait(holder, time.monotonic())

    def _check(self, holder: Holder) -> None:
        with self._changed:
            self._lease.hear(holder, time.monotonic())

    def _ask(self, idle: OwnFrontEnd) -> None:
        self._answered = None
        post(idle, REST)
        with self._changed:
            if self._changed.wait_for(lambda: self._answered is idle or self._death, _ANSWER_SECONDS):
                return  # the holder learns of a death when it receives
            self._death = EngineDeadError(
                f"The warm engine did not answer within {_ANSWER_SECONDS:g} s at rest, so it was ended."
            )
        # Not this front end alone: its engine's processes, which may be stopped, end with the actor.
        self.end(at_once=True)
        raise self._death

    def _start(self) -> None:
        """Start a front end for the holder."""
        made = OwnFrontEnd(self._of_vllm)
        with self._changed:
            self._front_end = made
        threading.Thread(target=self._hear, args=(made,), name="raybatch-front-end", daemon=True).start()

    def _hear(self, front_end: OwnFrontEnd) -> None:
        with contextlib.suppress(*GONE, OSError):
            while True:
                message = front_end.connection.recv_bytes()
                with self._changed:
                    if message == SAYS_REST and front_end is not self._front_end:
                        self._answered = front_end
                    elif message == SAYS_REST:
                        self._front_end, self._idle = None, front_end
                        self._lease.set_idle(time.monotonic())
                    elif front_end is self._front_end:
                        self._messages.append(message)
                    self._changed.notify_all()
        with self._changed:
            is_needed = front_end in self._front_ends()
            was_free = is_needed and self._lease.is_free
            if was_free:
                self._lease.end()
        death = front_end.death()  # waits for the end of its process
        if not is_needed:
            return
        with self._changed:
            self._death = self._death or death
            self._changed.notify_all()
        if not was_free:
            time.sleep(_DEATH_NOTICE)
        self.end()

    def _watch(self) -> None:
        was_wanted, registry = False, WarmEngineRegistry()
        while True:
            time.sleep(random.uniform(*_CHECK_EVERY))
            is_wanted = False
            with contextlib.suppress(Exception):  # of Ray's, or from an engine of another version
                # Ray also lists what it is about to place, so once is not enough.
                is_free = bool(self._amounts) and self._lease.is_free
                is_wanted = is_free and should_evict(self._name, registry)
            with self._changed:
                verdict = self._lease.verdict(time.monotonic(), is_wanted and was_wanted)
                if verdict != "stay":
                    self._lease.end()
            if verdict != "stay":
                self.end(at_once=verdict == "kill")
                return
            was_wanted = is_wanted


def _leave() -> None:
    os._exit(1)
