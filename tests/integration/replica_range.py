# SPDX-License-Identifier: Apache-2.0
"""Jobs on a Ray of several nodes that come and go, each with GPUs that are only numbers; prints what it saw.

A program of its own, since a process has one Ray. Usage: ``replica_range.py FOLDER``
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.phases.driver import run
from tests.support.specs import submitted

ENDLESS = "never answered"


class Running:
    """A job in a thread of this process.

    :ivar manifest: of the job that has succeeded.
    """

    def __init__(self, folder: Path, texts: list[str], **engine_args: Any) -> None:
        self.log = folder / "log"
        self._parts = folder / "out/_raybatch/parts"
        self.said: list[str] = []
        self.manifest: BatchManifest | None = None
        self.error: RaybatchError | None = None
        self._before = set(actors())
        folder.mkdir()
        (folder / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        replicas = engine_args.pop("replicas")
        self._spec = submitted(
            time.monotonic_ns(),
            task={"dag_id": "d", "run_id": folder.name, "task_id": "t"},
            source=[str(folder / "in.jsonl")],
            prompt="{row.text}",
            engine_args={"request_log": str(self.log), "hang_pattern": ENDLESS, **engine_args},
            replicas=replicas,
            num_cpus=0.1,
            rows_in_flight=4,
            flush_interval=0.5,
            deduplicate=False,
            destination=str(folder / "out"),
        )
        self._control = Control(self._spec, lambda event: None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        say = lambda event: self.said.append(event.text())  # noqa: E731
        try:
            summary = run(self._spec, self._spec.submission, say, control=self._control)
            self.manifest = parse(BatchManifest, Path(summary.manifest_uri).read_bytes())
        except RaybatchError as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(90)

    def stop(self) -> None:
        """As its task's end would."""
        self._control.stop()
        self.wait()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the engines logged."""
        lines = [line for file in self.log.glob("*.jsonl") for line in file.read_text().splitlines()]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def written(self) -> int:
        """How many rows are in parts."""
        return sum(pq.read_metadata(part).num_rows for part in self._parts.rglob("*.parquet"))

    def replicas(self) -> Counter[str]:
        """The states of the actors that are replicas of this job."""
        return Counter(state for actor, state in actors().items() if actor not in self._before)


def actors() -> dict[str, str]:
    """The states of the actors that are replicas."""
    known = ray._private.state.actors()
    return {name: one["State"] for name, one in known.items() if "Replica" in one["ActorClassName"]}


def wait_for(what: str, holds: Callable[[], object], running: Running, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends or running.manifest or running.error:
            seen = running.replicas(), running.events("open"), len(running.events("end")), free_gpus()
            raise SystemExit(f"no {what}: {seen}, {running.error}, {running.said}")
        time.sleep(0.1)


def free_gpus() -> float:
    return ray.available_resources().get("GPU", 0.0)


def groups() -> Counter[str]:
    """The states of all placement groups."""
    return Counter(one["state"] for one in ray.util.placement_group_table().values())


class Nodes:
    """Of one GPU each, beside a head that has none."""

    def __init__(self) -> None:
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False}
        )

    def add(self) -> None:
        self.cluster.add_node(num_cpus=1, num_gpus=1)


def too_late(nodes: Nodes, folder: Path) -> dict[str, Any]:
    """The second node comes when the rows are all with the first."""
    texts = [*map(str, range(9)), ENDLESS]
    running = Running(folder, texts, replicas=(1, 2), tensor_parallel_size=1)
    wait_for("answers", lambda: len(running.events("end")) == 9, running)
    nodes.add()
    wait_for("second replica that has ended", lambda: running.replicas() == {"ALIVE": 1, "DEAD": 1}, running)
    wait_for("free GPU", lambda: free_gpus() == 1, running)
    found = {"engines": len(running.events("open")), "said": running.said}
    running.stop()
    return {**found, "error": str(running.error)}


def in_time(nodes: Nodes, folder: Path) -> dict[str, Any]:
    """A third node comes when there is much to do; in the end, one replica has one row for long."""
    texts = [f"{number} " + "word " * 9 for number in range(120)]
    # Two replicas take 51 s: on a slow machine the third node and its replica need half of that to start.
    fields = {"replicas": (1, 4), "tensor_parallel_size": 1, "seconds_per_token": 0.3}
    running = Running(folder, [ENDLESS, *texts], **fields)
    wait_for("answers", lambda: running.events("end"), running)
    nodes.add()
    wait_for("three engines", lambda: len(running.events("open")) == 3, running)
    # The fourth, which no node has room for, is no longer waited for.
    wait_for("replicas that have left", lambda: running.replicas() == {"ALIVE": 1, "DEAD": 3}, running)
    wait_for("free GPUs", lambda: free_gpus() == 2, running)
    # The one that stayed may have had rows besides that one, which a stop gives up.
    wait_for("rows in parts", lambda: running.written() == 120, running)
    running.stop()
    return {
        "closed": len(running.events("close")),
        "answers": sorted(file.read_text().count('"end"') for file in running.log.iterdir()),
        "prompts": len({event["prompt"] for event in running.events("end")}),
        "error": str(running.error),
    }


def over_nodes(nodes: Nodes, folder: Path) -> dict[str, Any]:
    """A replica over two nodes, one of whose workers is killed; and one node more, when no row is left.

    So there are nodes for a second replica, which has waited.
    """
    texts = [f"{number} " + "word " * 9 for number in range(16)]
    fields = {"replicas": (1, 2), "tensor_parallel_size": 2, "seconds_per_token": 0.1}
    running = Running(folder, [*texts, ENDLESS], **fields)
    wait_for("answers", lambda: len(running.events("end")) >= 4, running)
    waiting = groups()
    first = running.events("open")[0]["workers"]
    os.kill(first[1]["pid"], signal.SIGKILL)
    wait_for("second engine", lambda: len(running.events("open")) == 2, running)
    second = running.events("open")[-1]["workers"]
    wait_for("answers to all", lambda: len({one["prompt"] for one in running.events("end")}) == 16, running)
    held = free_gpus()
    nodes.add()
    wait_for("second replica that has ended", lambda: running.replicas() == {"ALIVE": 1, "DEAD": 1}, running)
    wait_for("placement group that is gone", lambda: groups()["REMOVED"] == 1, running)
    wait_for("free GPUs", lambda: free_gpus() == 2, running)
    engines = len(running.events("open"))
    running.stop()
    return {
        "waiting": waiting,
        "nodes": [len({worker["node"] for worker in workers}) for workers in (first, second)],
        "gpus": [[worker["gpus"] for worker in workers] for workers in (first, second)],
        "held": held,
        "engines": engines,
        "groups": groups(),
        "said": running.said,
        "error": str(running.error),
    }


@contextmanager
def several_nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="error")
    try:
        nodes.add()
        yield nodes
    finally:
        ray.shutdown()  # the nodes end with this process


def main(folder: Path) -> None:
    with several_nodes() as nodes:
        seen: dict[str, Any] = {}
        for story in (too_late, in_time, over_nodes):
            began = time.monotonic()
            seen[story.__name__] = story(nodes, folder / story.__name__)
            seen[story.__name__]["seconds"] = round(time.monotonic() - began)
        ended = time.monotonic() + 20
        while free_gpus() < 4 and time.monotonic() < ended:
            time.sleep(0.1)
        seen["free"] = free_gpus()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
