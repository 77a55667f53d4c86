# SPDX-License-Identifier: Apache-2.0
"""One import of vLLM for all processes of an engine.

With spawn, which vLLM needs in a Ray actor and on CPUs, its engine process and its workers each import torch
and vLLM, one after the other: 13 seconds each on an idle CPU. Here Python's own fork server imports them
once, and all other processes are forked from it. vLLM's server does the same on request
(``VLLM_WORKER_MULTIPROC_METHOD=forkserver`` in its ``api_server``), but an actor can't ask for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import context, forkserver, process, shared_memory
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.storage.local_files import held_folder, own_prefix

_PRELOADED = f"{__package__}.preloaded"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST_FOLDER = 107 - len("/xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
"""A socket's name has at most 107 bytes (unix(7)); vLLM's end with a UUID."""

_starting = threading.Lock()
_server: int | None = None
"""The server's process id, in its children."""


class _Process(context.ForkServerProcess):
    """A forked process that has its parent's environment, as a spawned one would, and ends with it."""

    def start(self) -> None:
        self._environment = dict(os.environ)
        super().start()

    def run(self) -> None:
        _end_with_server()
        _use(self._environment)
        if folder := vllm_compat.kept_folder():
            vllm_compat.use(folder)
            _name_shared_memory(own_prefix(folder))
        # Without this, it would start a server of its own.
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
        threading.Thread(target=_end_with_parent, daemon=True).start()
        super().run()


class _Context(context.ForkServerContext):
    Process = _Process


def start() -> None:
    """Start the server for all processes that this one and its children spawn. Returns at once.

    If the server's import fails, each process imports for itself.
    """
    serve_spawn()
    forkserver.set_forkserver_preload([_PRELOADED])
    with _starting, _server_start():
        forkserver._forkserver.ensure_running()  # not the function of the module, see _Process.run


def serve_spawn() -> None:
    """Let the context ``spawn`` of :mod:`multiprocessing` fork from the server."""
    context._concrete_contexts["spawn"] = _Context()  # type: ignore[attr-defined]


def prepare() -> None:
    """Prepare this process, the server."""
    global _server
    _server = os.getpid()
    serve_spawn()  # for the processes below, which start workers
    with contextlib.suppress(Exception):  # where stderr is not a file
        faulthandler.enable()  # log where a child dies of a signal
    with contextlib.suppress(ImportError):
        import setproctitle  # vLLM brings it

        # It finds the memory for titles by the first variable, which a child may have changed.
        setproctitle.getproctitle()


@functools.cache
def folder_of_sockets() -> Path | None:
    """A folder for the sockets of this process's engine, which remain if it is killed.

    :returns: ``None`` if the disk is full or the folder's name too long for a socket's.
    """
    with contextlib.suppress(OSError):
        folder = held_folder()
        if len(str(folder)) <= _LONGEST_FOLDER:
            return folder
        folder.rmdir()
    return None


@contextlib.contextmanager
def _server_start() -> Iterator[None]:
    """Let a server have its socket in :func:`folder_of_sockets`, and this process's `sys.path`.

    It does not get the path by itself before Python 3.12.8.
    """
    folder = None if _server is not None else folder_of_sockets()  # children use their parent's
    path, before = os.environ.get("PYTHONPATH"), tempfile.tempdir
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    if folder is not None:
        tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        del os.environ["PYTHONPATH"]
        if path is not None:
            os.environ["PYTHONPATH"] = path


def _use(environment: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    _set_openmp(environment)


def _set_openmp(environment: Mapping[str, str]) -> None:
    """Apply variables that vLLM sets for each CPU worker: OpenMP reads them only at its start."""
    threads, places = environment.get("OMP_NUM_THREADS", ""), environment.get("OMP_PLACES", "")
    torch: Any = sys.modules.get("torch")
    if torch is not None and threads.isdigit():
        torch.set_num_threads(int(threads))
    if re.fullmatch(r"\{\d+(,\d+)*\}", places):
        os.sched_setaffinity(0, {int(cpu) for cpu in places[1:-1].split(",")})


def _name_shared_memory(prefix: str) -> None:
    """Name shared memory and semaphores of this process and its children after their owner.

    Python's resource tracker deletes them after a kill, but Ray kills the tracker, too.
    """
    if prefix:
        shared_memory._SHM_NAME_PREFIX = f"/{prefix}"  # type: ignore[attr-defined]
        process.current_process()._config["semprefix"] = f"/{prefix}"  # type: ignore[attr-defined]


def _end_with_server() -> None:
    """Let the kernel kill this process when the server, its parent, ends.

    An actor that ends kills its children, the server among them, but its own process may stay for a while.
    """
    if sys.platform == "linux" and _server is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != _server:  # it had ended already
            os.kill(os.getpid(), signal.SIGKILL)


def _end_with_parent() -> None:
    """Kill this process when the process that started it has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)
