# SPDX-License-Identifier: Apache-2.0
"""The process that an engine's front end has for itself.

The other side is :mod:`~airflow_provider_raybatch.job.engine.apart`. What the engine makes of a request, and
what it generates, stay here under a number until that side has forgotten them. So no object of vLLM's goes
from process to process, and the replica need not import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pickle
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Engine
from airflow_provider_raybatch.job.row import Request, Response, RowFailure

_THREADS = 3
"""The replica's two tokenizer threads wait for one each, and its reports for the third."""
TITLE = "raybatch::FrontEnd"

GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""What a connection raises whose other side is gone."""

Call = tuple[int, str, Any]
"""A number, what is to be done, and with what; pickled, where that is done in a thread."""
Answer = tuple[int, Any, BaseException | None]
"""The number of the call, what it returned or what it raised."""


def serve(connection: Connection) -> None:
    """Call the functions that come until one opens an engine; then serve it until the other side is gone."""
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle  # vLLM brings it

        setproctitle(TITLE)
    with contextlib.suppress(*GONE):
        while True:
            opens, function, arguments = connection.recv()
            try:
                made = function(*arguments)
            except Exception as error:
                traceback.print_exc()  # it does not go with the exception
                connection.send([(0, None, _portable(error))])
                continue
            if opens:
                _serve_engine(connection, made)
                return
            connection.send([(0, made, None)])


def _serve_engine(connection: Connection, engine: Engine) -> None:
    try:
        connection.send([(0, engine.info, None)])
        _run(Host(connection, engine).serve())
    finally:
        engine.close()


def open_vllm(spec: BatchInferenceSpec) -> Engine:
    """Open vLLM's engine in this process."""
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine

    return VllmEngine(spec)


def _run(work: Any) -> None:
    """On vLLM's own event loop, which is faster than Python's."""
    try:
        import uvloop  # vLLM brings it
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


class Host:
    """Answers calls, which come in lists, with lists of answers: one of each in a turn of the loop."""

    def __init__(self, connection: Connection, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._held: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._answers: list[Answer] = []
        self._sending = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._functions: dict[str, Callable[[Any], Any]] = {
            "encode": self._encode,
            "decode": self._decode,
            "tokens_in_flight": lambda _: engine.tokens_in_flight(),
        }

    async def serve(self) -> None:
        """Return when the other side has closed the connection, or is gone."""
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        # Not a reader of the loop: libuv's makes the connection one that does not block, which it must.
        threading.Thread(target=self._hear, name="raybatch-calls", daemon=True).start()
        await self._is_over.wait()
        for request in self._requests.values():
            request.cancel()
        await asyncio.gather(*self._requests.values(), return_exceptions=True)

    def _hear(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            try:
                while True:
                    self._loop.call_soon_threadsafe(self._begin, self._connection.recv())
            except GONE:
                pass
            finally:
                self._loop.call_soon_threadsafe(self._is_over.set)

    def _begin(self, calls: list[Call]) -> None:
        for number, name, given in calls:
            if name == "generate":
                request = asyncio.ensure_future(self._engine.generate(self._held[given]))
                self._requests[number] = request
                request.add_done_callback(partial(self._generated, number))
            elif name == "cancel":
                if given in self._requests:
                    self._requests[given].cancel()
            elif name == "close":
                self._is_over.set()
            elif name == "forget":
                for held in given:
                    self._held.pop(held, None)
            else:
                self._threads.submit(self._answer, number, self._functions[name], given)

    def _generated(self, number: int, request: asyncio.Future[Any]) -> None:
        del self._requests[number]
        if request.cancelled():
            return
        error = request.exception()
        if error is not None:
            self._post((number, None, _portable(error)))
            return
        raw = request.result()
        if not isinstance(raw, RowFailure):
            raw = self._keep(raw), self._engine.tokens(raw)
        self._post((number, raw, None))

    def _post(self, answer: Answer) -> None:
        if not self._answers:
            self._loop.call_soon(self._send_answers)
        self._answers.append(answer)

    def _send_answers(self) -> None:
        answers, self._answers = self._answers, []
        self._send(answers)

    def _answer(self, number: int, function: Callable[[Any], Any], given: bytes) -> None:
        try:
            answer: Answer = number, function(pickle.loads(given)), None
        except Exception as error:
            answer = number, None, _portable(error)
        self._send([answer])

    def _send(self, answers: list[Answer]) -> None:
        with self._sending, contextlib.suppress(*GONE):
            self._connection.send(answers)

    def _keep(self, content: Any) -> int:
        number = next(self._numbers)
        self._held[number] = content
        return number

    def _encode(self, requests: Sequence[Request]) -> list[int | RowFailure]:
        encoded = self._engine.encode(requests)
        return [one if isinstance(one, RowFailure) else self._keep(one) for one in encoded]

    def _decode(self, held: Sequence[int]) -> list[Response]:
        return self._engine.decode([self._held[number] for number in held])


def _portable(error: BaseException) -> BaseException:
    """The error if the other side can read it, which does not import the engine's library."""
    if type(error).__module__.split(".")[0] in {"builtins", __package__.split(".")[0]}:
        with contextlib.suppress(Exception):  # whatever its content says of pickling
            pickle.loads(pickle.dumps(error))
            return error
    return RaybatchError(f"{type(error).__name__}: {error}")
