# SPDX-License-Identifier: Apache-2.0
"""A task's own cluster on Kubernetes: workers with GPUs come from zero, one is preempted, nothing is left.

It runs on the STAND-IN for a Kubernetes, with real Ray processes as pods, or on a real one (CONTRIBUTING.md),
where no worker is preempted.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.kubeconfig import Kubeconfig, kubeconfig_server
from airflow_provider_raybatch.storage.folder import folder
from tests.support.kubernetes.place import Place

from ..lake import Lake
from ..rest import AirflowApi, Task
from ..waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("a cluster of its own through Airflow; chaos/kubernetes has them always"),
]

FOLDER = "RAYBATCH_TEST_FOLDER"
ROWS = 24


@pytest.fixture
def conf(place: Place, lake: Lake, api: AirflowApi, tmp_path: Path) -> dict[str, Any]:
    """A run's params; a real cluster needs a folder that it reaches with a role of its own."""
    rows = [{"id": number, "text": f"word{number} b"} for number in range(ROWS)]
    slowly: dict[str, Any] = {"seconds_per_token": 0.2, "max_num_seqs": 1, "tensor_parallel_size": 2}
    if place.world is None:
        if FOLDER not in os.environ:
            pytest.skip(f"{FOLDER} names no folder")
        home = folder(f"{os.environ[FOLDER]}/{tmp_path.name}")
        home.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
        where = {"source": f"{home.uri}/rows.jsonl", "destination": f"{home.uri}/out"}
        return {"image": place.image, "engine_args": slowly, **where}
    lake.connect(api, "lake")
    lake.write_rows("kubernetes.jsonl", rows)
    return {
        "ray_version": version("ray"),
        "aws_conn_id": "lake",
        "source": "s3://lake/kubernetes.jsonl",
        "destination": "s3://lake/kubernetes",
        "engine_args": {**slowly, "request_log": str(tmp_path)},
    }


def test_workers_come_from_zero_and_nothing_is_left(
    api: AirflowApi, place: Place, lake: Lake, conf: dict[str, Any], tmp_path: Path
) -> None:
    run = api.trigger("own_cluster", **conf)
    task = run.task("infer")
    if place.world is not None:
        kept = wait_for("rows that are kept", lambda: rows_of_parts(lake), 300, run.evidence)
        place.world.disasters.preempt(worker(place))
    run.wait(timeout=300)
    assert run.task("read").xcom() == list(range(ROWS))
    assert task.read()["try_number"] == 1
    assert_told(task, preempted=place.world is not None)
    assert asyncio.run(left(place)) == []
    if place.world is not None:
        assert {one["kind"] for one in place.world.store.all()} == {"Namespace", "Event"}
        asked = Counter(answered(tmp_path))
        assert {asked[f"Say word{number} b"] for number in kept} == {1}


def worker(place: Place) -> str:
    pods = [pod["metadata"] for pod in place.stand_in.store.all("Pod")]
    (name,) = [pod["name"] for pod in pods if pod["labels"]["ray.io/node-type"] == "worker"]
    return str(name)


def rows_of_parts(lake: Lake) -> list[int]:
    """The rows that are stored so far, by the names of their parts (``...20-27_31.9.9.parquet``)."""
    names = [
        key.split(".") for key in lake.contents("kubernetes/_raybatch/parts") if key.endswith(".parquet")
    ]
    ranges = [one.partition("-") for name in names for one in name[-4].split("_")]
    return [row for first, _, last in ranges for row in range(int(first), int(last or first) + 1)]


def answered(log: Path) -> list[str]:
    """The prompts that engines have answered so far."""
    events = [json.loads(line) for file in log.glob("*.jsonl") for line in file.read_text().splitlines()]
    return [event.get("prompt", "") for event in events if event["event"] == "end"]


def assert_told(task: Task, *, preempted: bool) -> None:
    """Check that the task's log tells the cluster's life in its order."""
    told = "\n".join(task.log())
    expected = [
        "Created RayJob raybatch-",
        ": is ready.",
        "waiting for 1 more from the autoscaler",
        f"{ROWS} of {ROWS} rows committed",
        *(["Preempted: "] if preempted else []),
        "and its cluster are deleted.",
    ]
    places = [told.find(words) for words in expected]
    assert -1 not in places, (expected, told)
    assert places == sorted(places) or preempted, told


async def left(place: Place) -> list[str]:
    """What is left of clusters, as far as the Role shows it."""
    server = kubeconfig_server(Kubeconfig(str(place.kubeconfig)))
    async with KubernetesClient(server, place.namespace) as kubernetes:
        found = [await kubernetes.list(kind) for kind in ("RayJob", "RayCluster")]
    return [one["metadata"]["name"] for some in found for one in some]
