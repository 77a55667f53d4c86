# SPDX-License-Identifier: Apache-2.0
"""KubeRay's own samples go through the stand-in for a Kubernetes, or it would refuse what users have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support import kubernetes
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.nodes import Node
from tests.support.kubernetes.world import World

SAMPLES = sorted((Path(kubernetes.__file__).parent / "samples").glob("*ray-cluster*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_gets_ready(path: Path) -> None:
    made = World(clock=Clock(start=1_700_000_000), nodes=[Node("a", {"cpu": "64", "memory": "256Gi"})])
    found = [each for each in yaml.safe_load_all(path.read_text("utf-8")) if each]
    [cluster] = [each for each in found if each["kind"] == "RayCluster"]
    made.server.create(made.server.admin, "RayCluster", "default", cluster, validation="Strict")
    made.settle()
    [kept] = made.store.all("RayCluster")
    made.runtime.close()
    assert kept["status"]["state"] == "ready"
