# SPDX-License-Identifier: Apache-2.0
"""An engine whose workers are on several nodes starts them on the cluster of its replica."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ENGINE_PROCESS = """
import ray
ray.init(logging_level="error", log_to_driver=False)  # as vLLM's engine process does

@ray.remote(num_cpus=0)
class Worker:
    def answers(self):
        return True

assert ray.get(Worker.remote().answers.remote(), timeout=60)
print(ray.get_runtime_context().gcs_address)
"""
REPLICA = f"""
import subprocess, sys
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from airflow_provider_raybatch.job.engine import vllm_compat

@ray.remote(num_cpus=0)
class Replica:
    def open(self):
        vllm_compat.spawn_processes()
        command = [sys.executable, "-c", {ENGINE_PROCESS!r}]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1, "include_dashboard": False}})
ray.init(cluster.address, logging_level="error", log_to_driver=False)
token = Path.home() / ".ray/auth_token"
token.parent.mkdir()
token.write_text("0" * 64)
done = ray.get(Replica.remote().open.remote())
assert done.returncode == 0, done.stderr
assert done.stdout.strip() == cluster.address, (done.stdout, cluster.address)
ray.shutdown()
cluster.shutdown()
"""


def test_workers_start_though_a_token_lies_at_home() -> None:
    """The cluster has no tokens, and some other `ray.init()` on the node has left one."""
    settings = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    with tempfile.TemporaryDirectory(prefix="rb-", dir="/tmp", ignore_cleanup_errors=True) as home:
        done = subprocess.run(
            [sys.executable, "-c", REPLICA],
            env={
                **environment,
                "HOME": home,
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "RAY_TMPDIR": home,  # short, since Unix sockets lie in it
            },
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
