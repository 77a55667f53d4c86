# SPDX-License-Identifier: Apache-2.0
"""A job waits for GPU nodes that are scaled to zero, plans with them, and uses them as they come."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from airflow_provider_raybatch.cluster.local import reaper
from tests.support.ray_processes import FREE_PORTS, run_with_own_ray

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("nodes from zero by Ray's autoscaler; it takes more than a minute"),
]

# Version 2 of the autoscaler, the default of `ray up`. Its nodes are processes of this machine.
AUTOSCALER = {
    "RAY_enable_autoscaler_v2": "1",
    "RAY_FAKE_CLUSTER": "1",
    "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
    "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_AUTH_MODE": "disabled",
}
MEMORY = 100_000_000


@contextmanager
def autoscaling_head(folder: Path, most: int) -> Iterator[str]:
    """The GCS address of a Ray head with one CPU, whose autoscaler may add nodes of one CPU and one GPU.

    A reaper ends all its processes, including the autoscaler's nodes, even if this process is killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    config = folder / "autoscaling.yaml"
    config.write_text(json.dumps(autoscaling_config(address, most)))
    home = Path(tempfile.mkdtemp(prefix="rb-", dir="/tmp"))  # a short path, because it holds Unix sockets
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}"]
    options = {
        "node-ip-address": "127.0.0.1",
        "include-dashboard": "false",
        **FREE_PORTS,
        "num-cpus": 1,
        "object-store-memory": MEMORY,
        "temp-dir": home,
        "autoscaling-config": config,
    }
    read_end, write_end = os.pipe()
    guard = subprocess.Popen(
        [
            *(sys.executable, "-P", reaper.__file__, "--pipe", str(read_end), "--home", home, "--"),
            *(*start, "--disable-usage-stats", *(f"--{name}={value}" for name, value in options.items())),
        ],
        env={**{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}, **AUTOSCALER},
        pass_fds=(read_end,),
        start_new_session=True,
    )
    os.close(read_end)
    try:
        exit_code = home / reaper.EXIT_CODE_FILE
        while not (exit_code.exists() and exit_code.read_text()):
            assert guard.poll() is None
            time.sleep(0.1)
        assert exit_code.read_text() == "0", (home / reaper.LOG_FILE).read_text()
        yield address
    finally:
        os.close(write_end)
        guard.wait(30)


def autoscaling_config(address: str, most: int) -> dict[str, Any]:
    head = {"CPU": 1, "object_store_memory": MEMORY}
    commands = ("head_setup", "worker_setup", "head_start_ray", "worker_start_ray", "setup", "initialization")
    return {
        "cluster_name": "scaled-to-zero",
        **{f"{kind}_commands": [] for kind in commands},
        "file_mounts": {},
        "cluster_synced_files": [],
        "max_workers": most,
        "idle_timeout_minutes": 10,
        "provider": {
            # Not "fake_multinode", whose default configuration is missing in Ray's wheel.
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "disable_node_updaters": True,
            "gcs_address": address,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"node_config": {}, "resources": head, "max_workers": 0},
            "gpus": {"node_config": {}, "resources": {**head, "GPU": 1}, "max_workers": most},
        },
    }


def test_gpu_nodes_of_an_autoscaler_are_awaited_and_used(tmp_path: Path) -> None:
    with autoscaling_head(tmp_path, most=2) as address:
        seen, _ = run_with_own_ray("scaled_to_zero.py", address, str(tmp_path), seconds=500, **AUTOSCALER)
    failure_class, sentence = seen["refusal"]
    assert failure_class == "unschedulable"
    assert "asks for 1 replica of 1 CPU and 8 GPU" in sentence
    assert "gpus (at most 2 nodes of 1 CPU and 1 GPU)" in sentence
    assert seen["gpu_nodes"] == [False, True]  # before the wait that precedes the model check, and after it
    assert seen["phases"][0] == "waiting"
    assert (seen["planned"]["value"], seen["ok"]) == (2, 60)
    assert len(seen["nodes"]) == 2  # the second replica joined while the first one worked
    assert seen["still_requested"] == []
