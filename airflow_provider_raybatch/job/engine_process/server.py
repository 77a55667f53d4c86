# SPDX-License-Identifier: Apache-2.0
"""The process that an engine's front end has for itself.

The other side is :mod:`~airflow_provider_raybatch.job.engine_process.proxy`. Encoded requests and generated
results stay here under a number until that side has forgotten them. So no object of vLLM's goes from process
to process, and the replica need not import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import gpu
from airflow_provider_raybatch.job.engine.base import Renewable
from airflow_provider_raybatch.job.engine.images import AT_ONCE
from airflow_provider_raybatch.job.engine_process import fork_server
from airflow_provider_raybatch.job.failures.public_reasons import traceback_of
from airflow_provider_raybatch.job.row import Request, Response, RowFailure

_THREADS = 3
"""For calls of the replica's two tokenizer threads, and of its reports."""
_IMAGE_THREADS = AT_ONCE + 1
"""For calls that give requests their images: others, which are short, don't wait behind them. While a model's
processors work on some requests, the next is unpickled."""
TITLE = "raybatch::FrontEnd"

GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""What a connection raises when its other side is gone."""

Call = tuple[int, str, Any]
"""A number, the name of a function, and its argument; pickled if a thread runs the function."""
Answer = tuple[int, Any, BaseException | None]
"""The number of the call, and what it returned or raised."""
RESTS = "rests"
"""Sent after the last answer when the engine becomes idle, and as the answer to ``rest`` while it is idle."""
_LOOK_SECONDS = 1.0
"""Between two checks whether an idle engine has died."""


def serve(connection: Connection) -> None:
    """Call the functions that are sent, until one opens an engine; then serve the engine.

    That ends when the other side ends it or is gone. When that side lets it rest, the idle engine waits for
    the next one that opens it.
    """
    with contextlib.suppress(ImportError):
        from setproctitle import setproctitle  # vLLM brings it

        setproctitle(TITLE)
    resting: Renewable | None = None
    loop = _new_loop()  # one for all jobs: vLLM's engine has tasks in it
    asyncio.set_event_loop(loop)
    with contextlib.suppress(*GONE):
        while (message := _next(connection, resting)) is not None:
            if isinstance(message, list):
                if resting is None:
                    return  # calls of an engine that could not be opened
                # Is it still idle? If it hangs, this never returns, and the process that keeps it ends it.
                loop.run_until_complete(resting.ping())
                connection.send(RESTS)
                continue
            opens, function, arguments = message
            renew = resting.renewed if opens and resting is not None else None
            try:
                made: Any = (renew or function)(*arguments)
                if opens:
                    _prepare(made, loop, is_new=renew is None)
                    if renew is None:
                        gc.freeze()  # what an engine has loaded; vLLM's own servers do so, too
            except Exception as error:
                # A pickled exception has no traceback.
                print(traceback_of(error, _shows_rows(arguments)), file=sys.stderr, flush=True)
                connection.send([(0, None, _portable(error))])
                if renew is not None:
                    break  # the engine is in an unknown state
                continue
            if not opens:
                connection.send([(0, made, None)])
            elif _serve_engine(connection, made, loop):
                resting = made
                connection.send(RESTS)
            else:
                return
    if resting is not None:
        resting.close()


def _shows_rows(arguments: Sequence[Any]) -> bool:
    """Whether the job of a call may show what its rows hold."""
    return all(one.shows_rows for one in arguments if isinstance(one, BatchInferenceSpec))


def _prepare(engine: Renewable, loop: asyncio.AbstractEventLoop, is_new: bool) -> None:
    """Load what its next job needs. A new engine that can't is of no use to anyone, and ends."""
    try:
        loop.run_until_complete(engine.prepare())
    except Exception:
        if is_new:
            _end(loop)
            engine.close()
        raise


def _next(connection: Connection, resting: Renewable | None) -> Any:
    """The next message; ``None`` to end, also if the idle engine has died."""
    while resting is not None and not connection.poll(_LOOK_SECONDS):
        if resting.is_dead:
            return None
    return connection.recv()


def _serve_engine(connection: Connection, engine: Renewable, loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the engine is idle after it was served; else it has ended."""
    rests = False
    try:
        connection.send([(0, engine.info, None)])
        rests = loop.run_until_complete(EngineServer(connection, engine).serve())
    finally:
        if not rests:
            _end(loop)
            engine.close()
    return rests


def open_echo(spec: BatchInferenceSpec, spans_nodes: bool = False) -> Renewable:
    """Start an echo here."""
    from airflow_provider_raybatch.job.engine.echo import EchoEngine

    with gpu.starting(spec):
        return EchoEngine(spec, spans_nodes)


def open_vllm(spec: BatchInferenceSpec, spans_nodes: bool = False) -> Renewable:
    """Start vLLM's engine here, with its own processes forked from the fork server."""
    fork_server.start()
    if spec.pools:
        from airflow_provider_raybatch.job.engine.vllm_pooling import VllmPoolingEngine

        with gpu.starting(spec):
            return VllmPoolingEngine(spec, spans_nodes)
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine

    with gpu.starting(spec):
        return VllmEngine(spec, spans_nodes=spans_nodes)


def _new_loop() -> asyncio.AbstractEventLoop:
    """VLLM's own event loop, which is faster than Python's."""
    try:
        import uvloop  # vLLM brings it
    except ImportError:
        return asyncio.new_event_loop()
    made: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return made


def _end(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class EngineServer:
    """Answers calls; both come in lists, one list per turn of the event loop."""

    def __init__(self, connection: Connection, engine: Renewable) -> None:
        self._connection = connection
        self._engine = engine
        self._held: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._answers: list[Answer] = []
        self._sending = threading.Lock()
        self._rests = False
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raybatch")
        self._image_threads = ThreadPoolExecutor(_IMAGE_THREADS, thread_name_prefix="raybatch-images")
        self._functions: dict[str, Callable[[Any], Any]] = {
            "attach": self._attach,
            "encode": self._encode,
            "decode": self._decode,
            "tokens_in_flight": lambda _: engine.tokens_in_flight(),
        }

    async def serve(self) -> bool:
        """Return when the other side lets the engine rest, ends it (by ``None``), or is gone.

        :returns: whether it rests. Then none of that side's requests is left.
        """
        self._loop = asyncio.get_running_loop()
        self._is_over = asyncio.Event()
        # A thread, since libuv's readers make the connection non-blocking, and it must block.
        threading.Thread(target=self._hear, name="raybatch-calls", daemon=True).start()
        await self._is_over.wait()
        for request in self._requests.values():
            request.cancel()
        await asyncio.gather(*self._requests.values(), return_exceptions=True)
        for threads in (self._threads, self._image_threads):
            await asyncio.to_thread(threads.shutdown, cancel_futures=True)
        if self._rests:
            await self._engine.ping()  # if it hangs, the process that keeps it ends it
        return self._rests

    def _hear(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            try:
                while not self._rests:
                    calls = self._connection.recv()
                    if calls is None:
                        break
                    # The next messages after a rest are for serve().
                    self._rests = any(name == "rest" for _, name, _ in calls)
                    self._loop.call_soon_threadsafe(self._begin, calls)
            except GONE:
                self._rests = False
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
            elif name == "rest":
                pass  # see _hear
            elif name == "forget":
                for held in given:
                    self._held.pop(held, None)
            else:
                threads = self._image_threads if name == "attach" else self._threads
                threads.submit(self._answer, number, self._functions[name], given)

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

    def _attach(self, given: tuple[int, Sequence[npt.NDArray[np.uint8]]]) -> RowFailure | None:
        number, pixels = given
        made = self._engine.attach(self._held[number], pixels)
        if isinstance(made, RowFailure):
            return made
        self._held[number] = made
        return None

    def _decode(self, held: Sequence[int]) -> list[Response]:
        return self._engine.decode([self._held[number] for number in held])


def _portable(error: BaseException) -> BaseException:
    """The error, or its text if the other side, which has no library of the engine's, can't unpickle it."""
    if type(error).__module__.split(".")[0] in {"builtins", __package__.split(".")[0]}:
        with contextlib.suppress(Exception):  # its content may raise anything
            pickle.loads(pickle.dumps(error))
            return error
    name = type(error).__name__
    return RaybatchError(f"{name}: {error}", public=f"{name} in the engine's process")
