# SPDX-License-Identifier: Apache-2.0
"""Processes of Ray and of engines below this one, and programs that have a Ray of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
_PORTS = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")
FREE_PORTS = {f"{name}-port": 0 for name in (*_PORTS, "min-worker", "max-worker")}
"""Options of ``ray start``, beside other Rays of the machine."""


def ray_processes() -> dict[psutil.Process, str]:
    """Return the processes that this one and its children have started, with names and command lines."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found[process] = " ".join([process.name(), *process.cmdline()])
    return found


def coordinators() -> list[psutil.Process]:
    """Return the coordinators of jobs among them, by the name that Ray gives them."""
    return [process for process, command in ray_processes().items() if "ray::Coordinator" in command]


def vllm_engines(part: str = "EngineCore") -> list[psutil.Process]:
    """Return the engines among them, by the name that vLLM gives them, or their front ends."""
    return [process for process, command in ray_processes().items() if part in command]


def run_with_own_ray(program: str, *arguments: str, seconds: float, **variables: str) -> tuple[Any, str]:
    """Run a program of ``tests/integration`` in a process of its own, since a process has one Ray.

    :param variables: of its environment.
    :returns: the JSON object that it prints last, and its errors.
    """
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp", ignore_cleanup_errors=True) as home:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests/integration" / program), *arguments],
            env={
                **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
                "PYTHONPATH": str(ROOT),
                "RAY_TMPDIR": home,  # short, since Unix sockets lie in it
                "RAY_AUTH_MODE": "disabled",
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    *_, printed = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return json.loads(printed), done.stderr
