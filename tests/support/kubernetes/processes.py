# SPDX-License-Identifier: Apache-2.0
"""Pods as processes of this machine, for the stand-in for a Kubernetes: each is a `ray start` of its own.

A reaper owns each pod's processes and ends them when this process ends, SIGKILL included.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from airflow_provider_raybatch.cluster.local import reaper
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.kubelet import Running
from tests.support.kubernetes.ray_start import START_COMMAND, local_command

_HOST = "127.0.0.1"
_LOOK_SECONDS = 1.0
_PATIENT = {"RAY_raylet_start_wait_time_s": "200", "RAY_agent_register_timeout_ms": "200000"}
"""On a busy machine a raylet that waits ten seconds for its agents ends, and its `ray start` goes on."""
_AGENT_PORTS = ("dashboard-agent-grpc-port", "runtime-env-agent-port", "metrics-export-port")


@dataclass
class Process:
    """A reaper and what it started.

    :param home: with the log and the exit code; the reaper removes it at the end.
    """

    home: Path
    reaper: subprocess.Popen[bytes]
    pipe: int

    @property
    def exit_code(self) -> int | None:
        """Of the command, once it has ended."""
        try:
            return int((self.home / reaper.EXIT_CODE_FILE).read_text() or 0)
        except FileNotFoundError:
            return None if self.reaper.poll() is None else 1

    def end(self, *, killed: bool) -> None:
        """Tell the reaper; it needs seconds, unless the processes are killed."""
        if self.pipe < 0:
            return
        if killed:
            for process in psutil.Process(self.reaper.pid).children(recursive=True):
                process.kill()
        os.close(self.pipe)
        self.pipe = -1


@dataclass
class RayPod:
    """A head or a worker.

    :param port: of the head's GCS; a worker's is its head's.
    :param agent: port of the dashboard's agent, which KubeRay's probes ask.
    :param dashboard: port of a head's dashboard.
    """

    env: dict[str, str]
    port: int = 0
    agent: int = 0
    dashboard: int = 0
    ray: Process | None = None
    autoscaler: Process | None = None
    ready: bool = False
    looked: float = 0.0
    log: str = ""


@dataclass
class RayProcesses:
    """A runtime of pods as Ray processes.

    :param python: the interpreter whose Ray runs.
    :param env: added to the environment of every pod.
    :param kubernetes: environment by which Ray's autoscaler reaches the API server.
    """

    python: Path
    env: Mapping[str, str] = field(default_factory=dict)
    kubernetes: Mapping[str, str] = field(default_factory=dict)
    pods: dict[str, RayPod] = field(default_factory=dict)

    def start(self, pod: Manifest, env: Mapping[str, str]) -> None:
        made = self.pods[pod["metadata"]["uid"]] = RayPod({"RAY_AUTH_MODE": "disabled", **self.env, **env})
        if _is_head(pod):
            made.port, made.dashboard = _free_port(), _free_port()
            own = {"port": made.port, "dashboard-port": made.dashboard, "dashboard-host": _HOST}
            self._start_ray(made, own)

    def look(self, pod: Manifest) -> Running:
        made = self.pods[pod["metadata"]["uid"]]
        if time.monotonic() < made.looked + _LOOK_SECONDS:
            return Running(made.ready)
        made.looked = time.monotonic()
        if made.ray is None:
            self._start_worker(pod, made)
            return Running(False)
        if (code := made.ray.exit_code) is not None:
            return Running(False, code)
        token = made.env.get("RAY_AUTH_TOKEN")
        made.ready = _answers(made.agent, "/api/local_raylet_healthz", token)
        if _is_head(pod):
            made.ready = made.ready and _answers(made.dashboard, "/api/version", token)
        if made.ready and _is_head(pod):
            self._keep_autoscaler(pod, made)
        return Running(made.ready)

    def stop(self, pod: Manifest, *, killed: bool = False) -> bool:
        made = self.pods.get(pod["metadata"]["uid"])
        if made is None:
            return True
        made.ready = False
        processes = [each for each in (made.autoscaler, made.ray) if each is not None]
        for process in processes:
            if process.pipe >= 0:
                made.log += _text(process.home / reaper.LOG_FILE)
            process.end(killed=killed)
        return all(process.reaper.poll() is not None for process in processes)

    def dashboard(self, pod: Manifest) -> str | None:
        """Where a head's dashboard listens."""
        made = self.pods.get(pod["metadata"]["uid"])
        return f"{_HOST}:{made.dashboard}" if made is not None and made.ready else None

    def living(self) -> int:
        """The pods whose processes have not all ended."""
        return sum(pod.ray is not None and pod.ray.reaper.poll() is None for pod in self.pods.values())

    def close(self) -> None:
        """End all, and wait until they are gone."""
        processes = [each for pod in self.pods.values() for each in (pod.autoscaler, pod.ray) if each]
        for process in processes:
            process.end(killed=False)
        for process in processes:
            process.reaper.wait(30)

    def _start_worker(self, pod: Manifest, made: RayPod) -> None:
        """Start a worker once its head is there, which KubeRay's init container waits for."""
        cluster = made.env["RAY_CLUSTER_NAME"]
        for head in self.pods.values():
            if head.ready and head.port and head.env["RAY_CLUSTER_NAME"] == cluster:
                self._start_ray(made, {"address": f"{_HOST}:{head.port}"})
                return

    def _start_ray(self, made: RayPod, own: Mapping[str, object]) -> None:
        home = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))  # short: Unix sockets lie in it
        made.agent = _free_port()
        more = dict.fromkeys(("min-worker-port", "max-worker-port", *_AGENT_PORTS), 0)
        ray = str(self.python.with_name("ray"))
        agent = {"dashboard-agent-listen-port": made.agent}
        options = {"node-ip-address": _HOST, "temp-dir": home / "r", **more, **agent, **own}
        made.ray = self._run(home, local_command(made.env[START_COMMAND], ray, options), made.env)

    def _keep_autoscaler(self, pod: Manifest, made: RayPod) -> None:
        """Start the sidecar that Ray scales workers with, and again when it has ended."""
        has_one = any(each["name"] == "autoscaler" for each in pod["spec"]["containers"])
        if not has_one or (made.autoscaler is not None and made.autoscaler.exit_code is None):
            return
        home = Path(tempfile.mkdtemp(prefix="rk-", dir="/tmp"))
        where = ["--cluster-name", made.env["RAY_CLUSTER_NAME"], "--cluster-namespace"]
        where += [pod["metadata"]["namespace"], "--gcs-address", f"{_HOST}:{made.port}"]
        env = {**made.env, **self.kubernetes, "RAY_HEAD_POD_NAME": pod["metadata"]["name"]}
        ray = str(self.python.with_name("ray"))
        made.autoscaler = self._run(home, [ray, "kuberay-autoscaler", *where], env)

    def _run(self, home: Path, command: list[str], env: Mapping[str, str]) -> Process:
        read_end, write_end = os.pipe()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{self.python.parent}{os.pathsep}{kept.get('PATH', '')}"
        started = subprocess.Popen(
            [
                sys.executable,
                "-P",
                reaper.__file__,
                "--pipe",
                str(read_end),
                "--home",
                str(home),
                "--",
                *command,
            ],
            env={**kept, "PATH": path, **_PATIENT, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(read_end,),
            start_new_session=True,
        )
        os.close(read_end)
        return Process(home, started, write_end)


def _is_head(pod: Manifest) -> bool:
    return bool(pod["metadata"]["labels"].get("ray.io/node-type") == "head")


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind((_HOST, 0))
        return int(listening.getsockname()[1])


def _answers(port: int, path: str, token: str | None) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=2)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""
