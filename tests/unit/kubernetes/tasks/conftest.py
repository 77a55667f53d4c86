# SPDX-License-Identifier: Apache-2.0
"""A STAND-IN for a Kubernetes with KubeRay whose heads are fake Jobs APIs, and tasks that use it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.kubernetes.cluster import KubeRayCluster
from airflow_provider_raybatch.kubernetes.clusters import heartbeat
from airflow_provider_raybatch.kubernetes.kuberay import claim, lifecycle, waiting
from tests.support.airflow_tasks import (  # noqa: F401 - fixtures
    airflow_db,
    clock,
    dag_test,
    hurry,
    installation,
    ray,
    run,
)
from tests.support.batches import batch
from tests.support.kubernetes.credentials import write_kubeconfig
from tests.support.kubernetes.own_clusters import Batch
from tests.support.kubernetes.role import KUEUE, PROXY, role_rules
from tests.support.kubernetes.world import World, world


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A Kubernetes to which Airflow has the rights of the documented Role alone."""
    for module, name, seconds in (
        (claim, "_WAIT", 0.01), (lifecycle, "_WAIT", 0.01), (waiting, "_POLL", 0.05),
        (waiting, "_SLOWEST_POLL", 0.05), (heartbeat, "_SILENT_PAUSE", 0.05),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, seconds)
    hurry(monkeypatch)
    with world() as made:
        made.server.access.grant("airflow", role_rules(PROXY, KUEUE), namespace="default", token="of-airflow")
        monkeypatch.setenv(
            "KUBECONFIG", str(write_kubeconfig(tmp_path / "config", made.web.url, token="of-airflow"))
        )
        yield made


@pytest.fixture
def cluster() -> KubeRayCluster:
    return KubeRayCluster(image="rayproject/ray:2.60.0", gpus_per_worker=0)


@pytest.fixture
def own(cluster: KubeRayCluster) -> Batch:
    """Make a batch inference on a cluster of its own."""
    return lambda **arguments: batch(engine="echo", **{"ray_cluster": cluster, "model": None, **arguments})
