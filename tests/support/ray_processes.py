# SPDX-License-Identifier: Apache-2.0
"""The processes below this one, by their command lines: those of its Ray and of its engines."""

from __future__ import annotations

import contextlib

import psutil


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
