# SPDX-License-Identifier: Apache-2.0
"""A real Ray cluster of several nodes on one machine; each node can be lost like a machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import psutil

from airflow_provider_raybatch.cluster.local import reaper
from airflow_provider_raybatch.cluster.local.head import RayHead
from tests.support.ray_processes import FREE_PORTS

from ..integration.end_to_end.ports import free_ports
from ..integration.end_to_end.waiting import tail, wait_for

_START_TIMEOUT = 300.0
_STORE_BYTES = 200 * 2**20
_SETTINGS = {"RAY_enable_worker_prestart": "0"}  # idle workers cost a small machine more than they save
# The shortest intervals with which Ray notices a lost node and does not take a busy one for lost.
RAY_INTERVALS = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "10",
    "RAY_health_check_initial_delay_ms": "5000",
}


class ChaosCluster:
    """A context manager: a head without replicas, and worker nodes, each a family of processes.

    Each worker has its own loopback address, as machines have. The dashboard keeps its port when the head is
    replaced.

    :param workers: number of worker nodes.
    :param cpus: CPUs of each worker node, as Ray counts them.
    :param gpus: GPUs of each, which are only numbers.
    """

    def __init__(self, workers: int = 2, cpus: int = 2, gpus: int = 4) -> None:
        self._sizes = {"num-cpus": cpus, "num-gpus": gpus}
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._names = [f"127.0.0.{number + 2}" for number in range(workers)]
        self._head = ExitStack()
        self._guard = psutil.Process()
        self._workers: dict[str, WorkerNode] = {}

    def __enter__(self) -> ChaosCluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self._workers.values():
            node.end()
        self._workers.clear()
        self._head.close()

    @property
    def workers(self) -> list[str]:
        """Return the names of the worker nodes, which are their addresses."""
        return list(self._names)

    def processes_of_head(self) -> list[psutil.Process]:
        """Return the head's daemons and the processes on it, mostly drivers."""
        return self._guard.children(recursive=True)

    def processes_of(self, worker: str) -> list[psutil.Process]:
        return self._workers[worker].processes()

    def homes(self) -> list[Path]:
        """Return the folders below which the worker nodes have their sessions."""
        return [node.home for node in self._workers.values()]

    def kill_worker(self, worker: str) -> set[int]:
        """Kill all processes of the node at once, and return their ids; another node takes its place."""
        node = self._workers.pop(worker)
        killed = node.processes()
        kill(killed)
        killed += node.processes()  # what began meanwhile, and ends now
        node.end()
        return {process.pid for process in killed}

    def kill_head(self) -> None:
        """Kill all processes of the head at once. The workers stay without a head."""
        kill(self.processes_of_head())

    def replace_worker(self, worker: str) -> None:
        """Start a new node in place of a lost one."""
        self._workers[worker] = WorkerNode(worker, self._gcs_address, self._sizes)
        self._wait_for_nodes()

    def replace_all(self) -> None:
        """Start a new head, which does not know the old head's jobs, and new workers."""
        self.close()
        self._head = ExitStack()
        self._start()

    def _start(self) -> None:
        before = {child.pid for child in psutil.Process().children()}
        head = RayHead(
            {**RAY_INTERVALS, **_SETTINGS},
            num_cpus=0,
            with_token=False,
            dashboard_port=self.port,
            startup_timeout=_START_TIMEOUT,
        )
        self._head.enter_context(head)
        (self._guard,) = (
            child
            for child in psutil.Process().children()
            if child.pid not in before and reaper.__file__ in child.cmdline()
        )
        home = Path(self._guard.cmdline()[self._guard.cmdline().index("--home") + 1])
        self._gcs_address = (home / "ray_current_cluster").read_text().strip()
        for name in self._names:
            self._workers[name] = WorkerNode(name, self._gcs_address, self._sizes)
        self._wait_for_nodes()

    def _wait_for_nodes(self) -> None:
        wait_for("the worker nodes", self._nodes_are_there, _START_TIMEOUT, self._evidence)

    def _nodes_are_there(self) -> bool:
        for name, node in self._workers.items():
            # `ray start` gives a raylet 30 s, which is too short on a busy machine, so it is repeated.
            if node.failed:
                node.end()
                self._workers[name] = WorkerNode(name, self._gcs_address, self._sizes)
        try:
            answer = httpx.get(f"{self.url}/api/v0/nodes?limit=1000", timeout=30)
            nodes = answer.json()["data"]["result"]["result"]
        except (httpx.HTTPError, LookupError, TypeError, ValueError):
            return False
        alive = {node["node_ip"] for node in nodes if node["state"] == "ALIVE"}
        return {*self._workers} <= alive

    def _evidence(self) -> str:
        return "\n".join(node.log() for node in self._workers.values())


class WorkerNode:
    """A node that joins a head's cluster; a reaper keeps its processes together."""

    def __init__(self, address: str, gcs_address: str, sizes: dict[str, int]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="rw-", dir="/tmp"))
        self._pipe, write_end = os.pipe()
        options = {
            "address": gcs_address,
            "node-ip-address": address,
            **sizes,
            "temp-dir": self.home,
            "object-store-memory": _STORE_BYTES,
            **FREE_PORTS,
            "log-style": "record",
        }
        start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats"]
        command = [*start, *(f"--{name}={value}" for name, value in options.items())]
        environment = {
            **os.environ,
            **RAY_INTERVALS,
            **_SETTINGS,
            "RAY_AUTH_MODE": "disabled",
            "RAY_AUTH_TOKEN": "",
        }
        environment["PATH"] = (
            f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
        )
        read_end, self._pipe = self._pipe, write_end
        try:
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-P", reaper.__file__),
                    *("--pipe", str(read_end), "--home", str(self.home), "--", *command),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(read_end,),
                start_new_session=True,
            )
        finally:
            os.close(read_end)

    @property
    def failed(self) -> bool:
        """Return whether it could not be started."""
        with suppress(OSError, ValueError):
            return int((self.home / reaper.EXIT_CODE_FILE).read_text()) != 0
        return False

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self._guard.pid).children(recursive=True)

    def log(self) -> str:
        return tail(self.home / reaper.LOG_FILE)

    def end(self) -> None:
        """End all its remaining processes."""
        os.close(self._pipe)
        self._guard.wait(30)


def kill(processes: list[psutil.Process]) -> None:
    """SIGKILL all processes; they are stopped first, so that none sees another one die, as in a power cut."""
    for signal in ("suspend", "kill"):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                getattr(process, signal)()
