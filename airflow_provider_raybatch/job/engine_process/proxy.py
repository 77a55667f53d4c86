# SPDX-License-Identifier: Apache-2.0
"""The engine that a spec asks for: its front end may have a process of its own.

The fork server then imports vLLM once for that process and the engine's. And a replica reads and writes rows
under another GIL than the one under which requests are made, sent and read: with short answers, the GPU
waited for a replica that did both.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.job.engine.base import Engine, EngineDeadError, EngineInfo, Renewable
from airflow_provider_raybatch.job.engine_process import server
from airflow_provider_raybatch.job.engine_process.front_end import FrontEnd, OwnFrontEnd
from airflow_provider_raybatch.job.engine_process.server import GONE, Answer, Call
from airflow_provider_raybatch.job.row import Request, Response, RowFailure

T = TypeVar("T")


class _Held:
    """An encoded request or a generated result that the other process holds.

    :ivar tokens: see :meth:`~airflow_provider_raybatch.job.engine.base.Engine.tokens`.
    """

    __slots__ = ("_forget", "number", "tokens")

    def __init__(self, number: int, forget: Callable[[int], None], tokens: tuple[int, int] = (0, 0)) -> None:
        self.number = number
        self.tokens = tokens
        self._forget = forget

    def __del__(self) -> None:
        self._forget(self.number)


class EngineProxy:
    """See :class:`~airflow_provider_raybatch.job.engine.base.Engine`.

    Its process has imported what vLLM needs when the constructor returns; :meth:`open` starts the engine.

    :param front_end: the process; by default a new one.
    """

    info: EngineInfo

    def __init__(self, front_end: FrontEnd | None = None) -> None:
        self._front_end = front_end or OwnFrontEnd()
        # A random start: late answers to an earlier user of the process match no number.
        self._numbers = itertools.count(secrets.randbits(48) + 1)
        self._awaited: dict[int, Future[Any] | asyncio.Future[Any]] = {}
        self._calls: list[Call] = []
        self._forgotten: deque[int] = deque()
        self._is_open = self._is_gone = False

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the process, before the engine is opened.

        :raises Exception: what the function raises.
        :raises EngineDeadError: the process has ended.
        """
        returned: T = self._call(False, function, *arguments)
        return returned

    def open(
        self,
        spec: BatchInferenceSpec,
        opens: Callable[..., Renewable] = server.open_vllm,
        identity: str = "",
    ) -> None:
        """Start the engine that `spec` asks for, or take the one that the process has.

        :param opens: starts it, in the process.
        :param identity: see :func:`~airflow_provider_raybatch.job.engine_process.proxy.identity`; an
            engine with the same is taken.
        :raises RaybatchError: it can't start.
        """
        self._front_end.prepare(identity)
        self.info = self._call(True, opens, spec)
        self._is_open = True
        threading.Thread(target=self._hear, name="raybatch-engine", daemon=True).start()

    def _call(self, opens: bool, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            self._front_end.send((opens, function, arguments))
            ((_, value, error),) = self._front_end.receive()
        except GONE:
            raise self._front_end.death() from None
        if error is not None:
            raise error
        return value

    async def prepare(self) -> None:
        """Nothing: the other process has done so when the engine is open."""

    def encode(self, requests: Sequence[Request]) -> list[Any]:
        encoded: list[int | RowFailure] = self._ask("encode", list(requests))
        return [one if isinstance(one, RowFailure) else _Held(one, self._forgotten.append) for one in encoded]

    def attach(self, encoded: _Held, pixels: Sequence[npt.NDArray[np.uint8]]) -> Any:
        failure: RowFailure | None = self._ask("attach", (encoded.number, list(pixels)))
        return failure or encoded

    async def generate(self, encoded: _Held) -> Any:
        loop = asyncio.get_running_loop()
        number, answered = next(self._numbers), loop.create_future()
        self._await(number, answered)
        self._post(loop, (number, "generate", encoded.number))
        try:
            raw = await answered
        except asyncio.CancelledError:
            self._awaited.pop(number, None)
            self._post(loop, (0, "cancel", number))
            raise
        return raw if isinstance(raw, RowFailure) else _Held(raw[0], self._forgotten.append, raw[1])

    def tokens(self, raw: _Held) -> tuple[int, int]:
        return raw.tokens

    def tokens_in_flight(self) -> int:
        try:
            return int(self._ask("tokens_in_flight", None))
        except EngineDeadError:
            return 0

    def decode(self, raw: Sequence[_Held]) -> list[Response]:
        decoded: list[Response] = self._ask("decode", [one.number for one in raw])
        return decoded

    def close(self) -> None:
        self._front_end.end(self._is_open)

    def _ask(self, name: str, given: Any) -> Any:
        number, answered = next(self._numbers), Future[Any]()
        self._await(number, answered)
        self._send([(number, name, pickle.dumps(given, pickle.HIGHEST_PROTOCOL))])
        return answered.result()

    def _await(self, number: int, answered: Future[Any] | asyncio.Future[Any]) -> None:
        self._awaited[number] = answered
        if self._is_gone and self._awaited.pop(number, None) is not None:
            raise self._front_end.death()

    def _post(self, loop: asyncio.AbstractEventLoop, call: Call) -> None:
        """Send a call with all others of this turn of the loop."""
        if not self._calls:
            loop.call_soon(self._send_calls)
        self._calls.append(call)

    def _send_calls(self) -> None:
        calls, self._calls = self._calls, []
        if self._forgotten:
            calls.append((0, "forget", [self._forgotten.popleft() for _ in range(len(self._forgotten))]))
        self._send(calls)

    def _send(self, calls: list[Call]) -> None:
        with contextlib.suppress(*GONE):  # _hear notices, too
            self._front_end.send(calls)

    def _hear(self) -> None:
        try:
            while True:
                self._resolve(self._front_end.receive())
        except GONE:
            pass
        finally:
            self._is_gone = True
            self._front_end.kill()
            with contextlib.suppress(KeyError):  # the dict is empty; later calls see _is_gone
                while True:
                    # popitem is atomic; other threads change the dict, so it can't be iterated over.
                    _, answered = self._awaited.popitem()
                    _tell([(answered, None, self._front_end.death())])

    def _resolve(self, answers: list[Answer]) -> None:
        waiting = [(self._awaited.pop(number, None), value, error) for number, value, error in answers]
        _tell([(answered, value, error) for answered, value, error in waiting if answered is not None])


def call_apart(
    of_vllm: bool, seconds: float, function: Callable[..., Any], *arguments: Any
) -> tuple[Any, Exception | None]:
    """Call a function in a new process, which ends then.

    :param of_vllm: see :class:`OwnFrontEnd`.
    :param seconds: after which the process is killed.
    :returns: what the function returned, or raised.
    :raises EngineDeadError: the process has ended before.
    """
    front_end = OwnFrontEnd(of_vllm)
    limit = threading.Timer(seconds, front_end.kill)
    limit.daemon = True
    limit.start()
    try:
        return EngineProxy(front_end).call(function, *arguments), None
    except EngineDeadError:
        raise
    except Exception as error:
        return None, error
    finally:
        limit.cancel()
        front_end.kill()
        front_end.death()  # waits for its end


def _tell(answers: Sequence[tuple[Future[Any] | asyncio.Future[Any], Any, BaseException | None]]) -> None:
    """Set the results of futures; those of the event loop in one turn of it."""
    waiting = []
    for answered, value, error in answers:
        if isinstance(answered, Future):
            _set(answered, value, error)
        else:
            waiting.append((answered, value, error))
    if waiting:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            waiting[0][0].get_loop().call_soon_threadsafe(_set_all, waiting)


def _set_all(waiting: Sequence[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for answered, value, error in waiting:
        if not answered.done():  # not cancelled meanwhile
            _set(answered, value, error)


def _set(answered: Future[Any] | asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if error is None:
        answered.set_result(value)
    else:
        answered.set_exception(error)


def import_engine(spec: BatchInferenceSpec, spans_nodes: bool = False) -> EngineProxy | None:
    """Import what the engine needs, which for vLLM takes half of a small model's start.

    :returns: the process that has imported it, for :func:`open_engine`; ``None`` if the engine has none.
    """
    return EngineProxy() if spec.engine == "vllm" and not spans_nodes else None


def identity(spec: BatchInferenceSpec, files: str) -> str:
    """32 hex digits over what decides an engine.

    :param spec: as it was checked, with the version of the model.
    :param files: digest of the files of model and tokenizer.
    """
    share = spec.num_gpus if spec.shares_gpu else None
    return json_digest([spec.engine, spec.model, spec.engine_args, files, spec.model_task, share])


def opener(spec: BatchInferenceSpec) -> Callable[..., Renewable]:
    """The function that starts the engine."""
    return server.open_echo if spec.engine == "echo" else server.open_vllm


def open_engine(
    spec: BatchInferenceSpec,
    spans_nodes: bool = False,
    proxy: EngineProxy | None = None,
    files: str = "",
) -> Engine:
    """Start the engine that `spec` asks for.

    :param spans_nodes: whether its GPUs are the bundles of this actor's placement group, one each. vLLM finds
        them in the actor's own process alone.
    :param proxy: the process for it; without one, it runs in this process.
    :param files: see :func:`identity`. An equal warm engine is taken as it is.
    :raises RaybatchError: it can't start.
    """
    if proxy is not None:
        proxy.open(spec, opener(spec), identity(spec, files))
        return proxy
    return opener(spec)(spec, spans_nodes)
