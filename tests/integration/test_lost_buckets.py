# SPDX-License-Identifier: Apache-2.0
"""Rows in buckets outlive the nodes on which CPU tasks have made them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.turn(2)]


def test_buckets_of_lost_nodes_are_made_again(tmp_path: Path) -> None:
    """By the tasks that made them: a replica gets each row once, those of a document together."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp", ignore_cleanup_errors=True) as home:
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("lost_buckets.py")), str(tmp_path)],
            env={
                **environment,
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "RAY_TMPDIR": home,  # short, since Unix sockets lie in it
                "RAY_AUTH_MODE": "disabled",
                "RAY_enable_worker_prestart": "0",
            },
            capture_output=True,
            text=True,
            timeout=360,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (seen,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(seen["rows"]) == list(range(2000))
    assert seen["changes"] == 499
    assert "lost objects by resubmitting their tasks" in done.stderr
