# SPDX-License-Identifier: Apache-2.0
"""Engines that share a GPU start one after the other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.job.engine import gpu as module
from tests.support.replicas import eventually
from tests.support.specs import spec

HALF = spec(num_gpus=0.5)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The GPU of this process is 3; a folder stands for the machine's shared memory."""
    monkeypatch.setattr(module, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")


class Start(threading.Thread):
    """An engine that starts until it is told to have started.

    :ivar begun: set once it is alone.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(daemon=True)
        self._arguments = {"spec": HALF, **arguments}
        self.begun, self.started = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with module.starting(**self._arguments):
            self.begun.set()
            assert self.started.wait(60)

    def end(self) -> None:
        self.started.set()
        self.join(60)


def test_the_second_start_waits_for_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    first = Start()
    assert first.begun.wait(60)
    second = Start()
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "\n" in said

    eventually(has_said)
    assert said == (
        "num_gpus: GPU 3: another engine starts on it and measures its memory; this one waits for it, at "
        "most 600 s.\n"
    )
    assert not second.begun.is_set()
    first.end()
    assert second.begun.wait(60)
    second.end()


def test_engines_on_other_gpus_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with module.starting(HALF):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
        other = Start()
        assert other.begun.wait(60)
        other.end()


@pytest.mark.parametrize("fields", [{}, {"num_gpus": 1}])
def test_engines_with_whole_gpus_do_not_wait(fields: dict[str, Any], tmp_path: Path) -> None:
    with module.starting(HALF):
        whole = Start(spec=spec(**fields))
        assert whole.begun.wait(60)
        whole.end()


def test_a_hanging_start_is_not_waited_for_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """At most half of the time in which the job may make no progress."""
    with module.starting(HALF):
        impatient = Start(spec=spec(num_gpus=0.5, no_progress_timeout=0.4))
        assert impatient.begun.wait(60)
        impatient.end()
    assert "still starts after 0.2 s; this one starts now.\n" in capsys.readouterr().err


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from airflow_provider_raybatch.job.engine import gpu as module\n"
        "from tests.support.specs import spec\n"
        "module._SHARED_MEMORY = pathlib.Path(sys.argv[1])\n"
        "with module.starting(spec(num_gpus=0.5)):\n"
        "    print('alone', flush=True)\n"
        "    time.sleep(300)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        waiting = Start()
        time.sleep(2 * module._POLL)
        assert not waiting.begun.is_set()
        holder.kill()
        assert waiting.begun.wait(60)
        waiting.end()


def test_an_engine_starts_where_no_lock_can_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user has planted a link under the name."""
    path = module._path("3")
    path.symlink_to(tmp_path / "elsewhere")
    with module.starting(HALF):
        assert "GPU 3: no lock can be made (" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
