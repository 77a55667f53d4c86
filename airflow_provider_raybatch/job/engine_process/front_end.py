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
    """A connection to a front end, wherever it runs."""

    def send(self, message: Any) -> None:
        """Send it a message, from any thread.

        :raises OSError: it is gone.
        """

    def receive(self) -> Any:
        """Wait for its next message.

        :raises EOFError: it is gone.
        """

    def prepare(self, identity: str) -> None:
        """Let its next message open an engine.

        :param identity: see :func:`~airflow_provider_raybatch.job.engine_process.proxy.identity`.
        :raises EngineDeadError: it is gone.
        """

    def end(self, is_open: bool) -> None:
        """End it, or leave it to the next user.

        :param is_open: whether it has an engine.
        """

    def kill(self) -> None:
        """Kill it. It may have ended already."""

    def death(self) -> EngineDeadError:
        """Why it has ended."""


class OwnFrontEnd:
    """A child process; it ends with this one. See :class:`FrontEnd`.

    :param of_vllm: import what vLLM needs there before the constructor returns.
    """

    def __init__(self, of_vllm: bool = True) -> None:
        if of_vllm:
            fork_server.start()
            vllm_compat.keep_files_in(fork_server.folder_of_sockets())
        context = multiprocessing.get_context("spawn")  # served by the fork server
        self.connection, there = context.Pipe()
        self.process = context.Process(target=server.serve, args=(there,), name=server.TITLE)
        self.process.start()
        there.close()
        self._sending = threading.Lock()
        # At exit, Python waits for children, and this child waits for its parent.
        util.Finalize(self, self.process.kill, exitpriority=10)

    def send(self, message: Any) -> None:
        with self._sending:
            self.connection.send(message)

    def pass_on(self, pickled: bytes) -> None:
        """Send it a message that is already pickled.

        :raises OSError: it is gone.
        """
        with self._sending:
            self.connection.send_bytes(pickled)

    def receive(self) -> Any:
        return self.connection.recv()

    def prepare(self, identity: str) -> None:
        pass

    def end(self, is_open: bool) -> None:
        with contextlib.suppress(*GONE):
            self.send(None)
        self.process.join(_END_SECONDS)
        self.process.kill()

    def kill(self) -> None:
        self.process.kill()

    def death(self) -> EngineDeadError:
        self.process.join(_LAST_WORD_SECONDS)
        code = self.process.exitcode
        return EngineDeadError(
            f"the process of vLLM's front end ended (exit code {code}).", killed=code == -signal.SIGKILL
        )
