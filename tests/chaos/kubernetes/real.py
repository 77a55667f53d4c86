# SPDX-License-Identifier: Apache-2.0
"""Rounds on real Ray: heads are `ray start` processes, with the real driver, engines and dataset.

Kubernetes, KubeRay and Airflow still stand in. Replicas run on the head, which saves a worker's start.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from tests.chaos.workload import Pace, check, write_source
from tests.support.engine_log import engines
from tests.support.grouping import grouped
from tests.support.http_server import Authority
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.head_api import token_of
from tests.support.kubernetes.processes import RayProcesses
from tests.support.kubernetes.ray_world import ray_world
from tests.support.kubernetes.world import World

PACE = Pace(rows=40, replicas=1, slots=8, rows_in_flight=16, batch_size=8, seconds_per_token=0.05)
_LOOK = 0.5
_LIVING = {"PENDING", "RUNNING"}


@dataclass
class RealLake:
    """What real jobs did, as far as the Jobs API and the dataset tell.

    :ivar jobs: each job that a head had, by head and id, with its last status.
    """

    folder: Path
    rows: int = 0
    duplicated: int = 0
    wrong: int = 0
    asked: int = 0
    most_at_once: int = 0
    jobs: dict[tuple[str, str], str] = field(default_factory=dict)

    def look(self, kubernetes: World) -> None:
        """Ask each head for its jobs."""
        at_once = 0
        for pod in kubernetes.store.all("Pod"):
            address = kubernetes.runtime.dashboard(pod)
            for job in _jobs(kubernetes, pod, address) if address else ():
                if job["type"] != "SUBMISSION":
                    continue
                self.jobs[str(address), job["submission_id"]] = job["status"]
                at_once += job["status"] in _LIVING
        self.most_at_once = max(self.most_at_once, at_once)

    def judge(self, source: dict[int, dict[str, Any]], result: Any) -> None:
        """Compare the dataset that the task returned with its input."""
        if isinstance(result, dict):
            rows = pq.read_table(result["uri"]).to_pylist()  # type: ignore[no-untyped-call]
            found = check(source, rows)
            self.rows, self.duplicated, self.wrong = len(source) - found.lost, found.duplicated, found.wrong
        self.asked = sum(len(engine.asked) for engine in engines(self.folder / "requests"))


class Heads(RayProcesses):
    """Real heads, whose processes can be killed."""

    clusters: set[str]

    def start(self, pod: Any, env: Any) -> None:
        self.clusters.add(pod["metadata"]["labels"]["ray.io/cluster"])
        super().start(pod, env)

    def crash(self, uid: str) -> None:
        """Kill all processes of a pod."""
        made = self.pods.get(uid)
        if made is not None and made.ray is not None:
            for process in psutil.Process(made.ray.reaper.pid).children(recursive=True):
                process.kill()


@contextmanager
def real_world(folder: Path, shift: float, lake: RealLake) -> Iterator[tuple[World, Path]]:
    """A stand-in whose pods are Ray processes, and the file of the authority that clients trust."""
    python = Path(os.environ.get("RAYBATCH_CLUSTER_PYTHON", ".venv-ray/bin/python")).absolute()
    authority = Authority(folder)
    with ray_world(authority, python, clock=Clock(shift=shift)) as kubernetes:
        kubernetes.runtime.__class__ = Heads
        kubernetes.runtime.clusters = set()
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_LOOK):
                lake.look(kubernetes)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield kubernetes, authority.pem
        finally:
            ended.set()
            thread.join()


def arguments(folder: Path, seed: int) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """The rows of a round, and the operator's arguments."""
    source = write_source(folder, PACE.rows, seed)
    given = {name: value for name, value in PACE.params(folder).items() if value is not None}
    return source, grouped({**given, "engine": "echo", "poll_interval": 1.0})


def cluster() -> dict[str, Any]:
    """A head with CPUs for the replica, and no workers."""
    container = {"name": "ray-head", "image": "rayproject/ray:2.60.0"}
    head = {
        "rayStartParams": {"num-cpus": "4", "no-monitor": "true"},
        "template": {"spec": {"containers": [container]}},
    }
    spec = {"rayVersion": "2.60.0", "headGroupSpec": head}
    return {"spec": {"kind": "RayCluster", "spec": spec}, "dashboard_address": "proxy"}


def _jobs(kubernetes: World, pod: Any, address: str) -> list[dict[str, Any]]:
    cluster = kubernetes.store.find(
        "RayCluster", pod["metadata"]["namespace"], pod["metadata"]["labels"]["ray.io/cluster"]
    )
    if cluster is None:
        return []
    token = token_of(kubernetes.server, pod["metadata"]["namespace"], cluster["spec"])
    connection = http.client.HTTPConnection(address, timeout=5)
    try:
        connection.request("GET", "/api/jobs/", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        found: list[dict[str, Any]] = json.loads(answer.read()) if answer.status == 200 else []
        return found
    except (OSError, ValueError, http.client.HTTPException):
        return []
    finally:
        connection.close()
