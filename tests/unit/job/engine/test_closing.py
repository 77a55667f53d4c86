# SPDX-License-Identifier: Apache-2.0
"""An engine whose processes do not end when they are asked to is gone once it is closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import psutil

from airflow_provider_raybatch.job.engine import vllm_compat

DEAF = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WORKER = DEAF + "print(flush=True); time.sleep(300)"
CORE = DEAF + f"subprocess.run([sys.executable, '-c', {WORKER!r}])"


class Engine(subprocess.Popen[bytes]):
    """A process that starts a worker, both deaf to SIGTERM, with the interface of multiprocessing's."""

    def __init__(self) -> None:
        super().__init__([sys.executable, "-c", CORE], stdout=subprocess.PIPE)
        assert self.stdout is not None
        self.stdout.readline()

    def join(self, timeout: float) -> None:
        self.wait(timeout)


def async_llm(engine: Engine) -> SimpleNamespace:
    """VLLM's, which kills the tree of processes that is left and does not wait for its end."""

    def shutdown() -> None:
        tree = [process.pid for process in psutil.Process(engine.pid).children(recursive=True)]
        for pid in (engine.pid, *tree):
            os.kill(pid, signal.SIGKILL)

    resources = SimpleNamespace(engine_manager=SimpleNamespace(processes=[engine]))
    return SimpleNamespace(engine_core=SimpleNamespace(resources=resources), shutdown=shutdown)


def test_no_process_is_left_of_a_closed_engine() -> None:
    engine = Engine()
    (worker,) = psutil.Process(engine.pid).children()
    vllm_compat.stop_engine(async_llm(engine))
    left = [pid for pid in (engine.pid, worker.pid) if psutil.pid_exists(pid)]
    assert not left


def test_engine_of_unknown_processes_is_shut_down() -> None:
    asked: list[str] = []
    vllm_compat.stop_engine(SimpleNamespace(shutdown=lambda: asked.append("shutdown")))
    assert asked == ["shutdown"]
