# SPDX-License-Identifier: Apache-2.0
"""The process of an engine's front end, and the way to it: here by a pipe."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from multiprocessing import util
from typing import Any, Protocol

from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.engine_process import fork_server, server
from airflow_provider_raybatch.job.engine_process.server import GONE

_END_SECONDS = 60.0
_LAST_WORD_SECONDS = 5.0


class FrontEnd(Protocol):
    """The way to a front end, wherever it is. What the proxy receives and sends goes through it."""

    def send(self, message: Any) -> None:
        """Send it a message, from any thread.

        :raises OSError: it is gone.
        """

    def receive(self) -> Any:
        """Its next message; waits for one.

        :raises EOFError: it is gone.
        """

    def prepare(self, identity: str) -> None:
        """Let its next message open an engine.

        :param identity: over all that decides the engine, see :func:`opening.identity`.
        :raises EngineDeadError: it is gone.
        """

    def end(self, is_open: bool) -> None:
        """Let it go, for good or for others.

        :param is_open: whether it has an engine.
        """

    def kill(self) -> None:
        """End it at once. It may have ended already."""

    def death(self) -> EngineDeadError:
        """How it has ended."""


class OwnFrontEnd:
    """A process for this one alone, which it does not outlive.

    :param of_vllm: whether it shall import what vLLM needs; it has done so when this returns.
    """

    def __init__(self, of_vllm: bool = True) -> None:
        if of_vllm:
            fork_server.start()
            vllm_compat.keep_files_in(fork_server.folder_of_sockets())
        context = multiprocessing.get_context("spawn")  # which that server then serves
        self.connection, there = context.Pipe()
        self.process = context.Process(target=server.serve, args=(there,), name=server.TITLE)
        self.process.start()
        there.close()
        self._sending = threading.Lock()
        # At this process's end, Python would wait for the other one, and that one for this.
        util.Finalize(self, self.process.kill, exitpriority=10)

    def send(self, message: Any) -> None:
        """See :class:`FrontEnd`."""
        with self._sending:
            self.connection.send(message)

    def pass_on(self, pickled: bytes) -> None:
        """Send it a message that is pickled already.

        :raises OSError: it is gone.
        """
        with self._sending:
            self.connection.send_bytes(pickled)

    def receive(self) -> Any:
        """See :class:`FrontEnd`."""
        return self.connection.recv()

    def prepare(self, identity: str) -> None:
        """See :class:`FrontEnd`. It has no engine yet."""

    def end(self, is_open: bool) -> None:
        """See :class:`FrontEnd`."""
        with contextlib.suppress(*GONE):
            self.send(None)
        self.process.join(_END_SECONDS)
        self.process.kill()

    def kill(self) -> None:
        """See :class:`FrontEnd`."""
        self.process.kill()

    def death(self) -> EngineDeadError:
        """See :class:`FrontEnd`."""
        self.process.join(_LAST_WORD_SECONDS)
        code = self.process.exitcode
        return EngineDeadError(
            f"the process of vLLM's front end ended (exit code {code}).", killed=code == -signal.SIGKILL
        )
