# SPDX-License-Identifier: Apache-2.0
"""What an autoscaler may add, by Ray's cluster configuration, KubeRay and the cluster launcher."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray._private.state import state
from ray.core.generated import autoscaler_pb2

from airflow_provider_raybatch.job.planning import autoscaler
from airflow_provider_raybatch.job.planning.autoscaler import from_autoscaling_config, from_reported_config
from airflow_provider_raybatch.job.planning.node_groups import UNLIMITED, AutoscalerLimits, NodeGroup
from tests.support.http_server import Authority, Handler, listening

LAUNCHER = {
    "cluster_name": "gpus",
    "max_workers": 10,
    "provider": {"type": "aws", "region": "us-west-2"},
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 8}, "node_config": {}},
        "cpu": {"resources": {"CPU": 16}, "node_config": {}},
        "p5": {"resources": {"CPU": 192, "GPU": 8, "accelerator_type:H100": 1}, "max_workers": 4},
        "off": {"resources": {}, "max_workers": 0},
    },
}


def worker_group(name: str, limits: dict[str, str], most: int, **fields: Any) -> dict[str, Any]:
    container = {"name": "ray-worker", "resources": {"limits": limits, "requests": {"cpu": "500m"}}}
    return {
        "groupName": name,
        "minReplicas": 0,
        "maxReplicas": most,
        "rayStartParams": {},
        "template": {"spec": {"containers": [container]}},
        **fields,
    }


def ray_cluster(**spec: Any) -> dict[str, Any]:
    """Return a RayCluster of KubeRay's documentation, in the form that the Kubernetes API returns."""
    head = {"name": "ray-head", "resources": {"cpu": "1", "memory": "5Gi"}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "batch", "namespace": "ml", "uid": "0"},
        "spec": {
            "rayVersion": "2.60.0",
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {
                "rayStartParams": {"num-cpus": "0"},
                "template": {"spec": {"containers": [head]}},
            },
            "workerGroupSpecs": [
                worker_group("cpu", {"cpu": "15500m", "memory": "60Gi"}, 10),
                worker_group("l4", {"cpu": "8", "nvidia.com/gpu": "1"}, 8, numOfHosts=2),
                worker_group(
                    "h100",
                    {"cpu": "64", "nvidia.com/gpu": "8"},
                    2,
                    labels={"ray.io/accelerator-type": "H100"},
                ),
            ],
            **spec,
        },
        "status": {"state": "ready"},
    }


class KubernetesApi(Handler):
    """Serves one RayCluster to clients with the token, and 403 to others."""

    definition: Any = None

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        path = "/apis/ray.io/v1/namespaces/ml/rayclusters/batch"
        allowed = (self.headers["Authorization"], self.path) == ("Bearer pod-token", path)
        self.send(200 if allowed else 403, json.dumps(self.definition).encode())


def serving(pem: Path, definition: Any) -> AbstractContextManager[int]:
    return listening(type("Api", (KubernetesApi,), {"definition": definition}), pem)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has no cluster configuration and this host no autoscaler: only Kubernetes may know."""
    monkeypatch.setattr(autoscaler, "_of_reported_config", lambda: None)
    monkeypatch.setattr(autoscaler, "_of_monitor", lambda: None)


@pytest.fixture
def in_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: None
) -> Iterator[Callable[[Any], AutoscalerLimits | None]]:
    """Return what a head pod knows whose Kubernetes API serves a RayCluster."""
    authority = Authority(tmp_path)
    pem = authority.server("127.0.0.1")
    authority.pem.rename(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("pod-token\n")
    (tmp_path / "namespace").write_text("ml")
    monkeypatch.setattr(autoscaler, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setattr(autoscaler, "_TIMEOUT", 60.0)
    monkeypatch.setenv("RAY_CLUSTER_NAME", "batch")
    monkeypatch.delenv("RAY_CLUSTER_NAMESPACE", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")

    def limits(definition: Any) -> AutoscalerLimits | None:
        with serving(pem, definition) as port:
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            return autoscaler.limits()

    return limits


class TestKubeRay:
    def test_worker_groups_of_the_raycluster_are_known(
        self, in_pod: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = in_pod(ray_cluster())
        assert found is not None
        assert found.max_nodes == 28
        cpu, l4, h100 = found.groups
        assert (cpu.name, cpu.max_nodes, cpu.node["CPU"], cpu.node.get("GPU")) == ("cpu", 10, 16, None)
        assert (l4.name, l4.max_nodes, l4.node) == ("l4", 16, {"CPU": 8, "GPU": 1})
        assert (h100.name, h100.max_nodes) == ("h100", 2)
        assert h100.node == {"CPU": 64, "GPU": 8, "accelerator_type:H100": 1}
        (tmp_path / "namespace").unlink()
        monkeypatch.setenv("RAY_CLUSTER_NAMESPACE", "ml")  # as newer versions of KubeRay do
        assert in_pod(ray_cluster()) == found

    @pytest.mark.parametrize(
        "definition",
        [
            ray_cluster(enableInTreeAutoscaling=False),
            ray_cluster(workerGroupSpecs=[]),
            ray_cluster(workerGroupSpecs=[worker_group("gpu", {"nvidia.com/gpu": "many"}, 1)]),
            ray_cluster(workerGroupSpecs=[{"groupName": "gpu"}]),
            {"kind": "Status", "status": "Failure"},
            [],
            None,
        ],
    )
    def test_cluster_without_an_autoscaler_is_unknown(self, in_pod: Any, definition: Any) -> None:
        assert in_pod(definition) is None

    def test_a_pod_without_rights_is_unknown(self, in_pod: Any, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("other")
        assert in_pod(ray_cluster()) is None
        (tmp_path / "token").unlink()
        assert in_pod(ray_cluster()) is None

    def test_a_server_that_is_not_kubernetes_gets_no_token(self, in_pod: Any, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other").server("127.0.0.1")
        with serving(other, ray_cluster()) as port, pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBERNETES_SERVICE_PORT", str(port))
            assert autoscaler.limits() is None

    def test_an_api_that_does_not_answer_is_unknown(
        self, in_pod: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(autoscaler, "_TIMEOUT", 0.2)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(silent.getsockname()[1]))
            assert autoscaler.limits() is None


class TestClusterLauncher:
    def test_node_types_are_groups(self) -> None:
        assert from_autoscaling_config(LAUNCHER) == AutoscalerLimits(
            (
                NodeGroup("cpu", {"CPU": 16.0}, 10),
                NodeGroup("p5", {"CPU": 192.0, "GPU": 8.0, "accelerator_type:H100": 1.0}, 4),
            ),
            max_nodes=10,
        )

    @pytest.mark.parametrize(
        "config",
        [
            {**LAUNCHER, "available_node_types": {"gpu": {"max_workers": 2}}},
            {**LAUNCHER, "available_node_types": {"gpu": {"max_workers": 2, "resources": {"GPU": "all"}}}},
            {**LAUNCHER, "available_node_types": ["gpu"]},
            {"cluster_name": "legacy", "worker_nodes": {"InstanceType": "p5.48xlarge"}},
            "gpus",
            None,
        ],
    )
    def test_a_configuration_without_shapes_is_unknown(
        self, tmp_path: Path, config: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monitor(tmp_path, json.dumps(config), "10.0.0.1:6379"):
            monkeypatch.setattr(autoscaler, "_of_reported_config", lambda: None)
            monkeypatch.setattr(autoscaler, "_of_monitor", lambda: autoscaler.of_monitor("10.0.0.1:6379"))
            assert autoscaler.limits() is None

    def test_the_file_of_this_clusters_monitor_is_read(self, tmp_path: Path) -> None:
        with monitor(tmp_path, json.dumps(LAUNCHER), "10.0.0.1:6379"):
            assert autoscaler.of_monitor("10.0.0.1:6379") == from_autoscaling_config(LAUNCHER)
            assert autoscaler.of_monitor("10.0.0.1:6380") is None
        with monitor(tmp_path, None, "10.0.0.1:6379"):
            assert autoscaler.of_monitor("10.0.0.1:6379") is None


@contextmanager
def monitor(folder: Path, config: str | None, gcs_address: str) -> Iterator[None]:
    """Start a process with the command line of Ray's autoscaler, in the folder of its configuration."""
    program = folder / "monitor.py"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(300)\n")
    command = [sys.executable, "-u", str(program), "--logs-dir=/tmp/ray/logs", f"--gcs-address={gcs_address}"]
    if config is not None:
        (folder / "cluster.yaml").write_text(config)
        command.append("--autoscaling-config=cluster.yaml")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


class TestReportedConfig:
    """The configuration that the cluster itself got, as on Anyscale."""

    def test_groups_and_totals_are_known(self) -> None:
        config = autoscaler_pb2.ClusterConfig(
            node_group_configs=[
                autoscaler_pb2.NodeGroupConfig(name="gpu", resources={"CPU": 8, "GPU": 1}, max_count=4),
                autoscaler_pb2.NodeGroupConfig(name="any", resources={"CPU": 8}, max_count=-1),
                autoscaler_pb2.NodeGroupConfig(name="off", resources={"CPU": 8}, max_count=0),
                autoscaler_pb2.NodeGroupConfig(name="empty", max_count=4),
            ],
            max_resources={"GPU": 3},
        )
        found = from_reported_config(config)
        assert found.groups == (
            NodeGroup("gpu", {"CPU": 8.0, "GPU": 1.0}, 4),
            NodeGroup("any", {"CPU": 8.0}, UNLIMITED),
        )
        assert found.replicas({"CPU": 1.0, "GPU": 1.0}, spans_nodes=False) == 3
        assert "any (any number of nodes of 8 CPU and 0 GPU), in all at most 3 GPU" in found.sentence({
            "CPU": 1.0,
            "GPU": 1.0,
        })

    def test_what_was_reported_goes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reported = autoscaler_pb2.ClusterConfig(
            node_group_configs=[autoscaler_pb2.NodeGroupConfig(name="gpu", resources={"GPU": 1}, max_count=4)]
        )
        configs = iter([reported, autoscaler_pb2.ClusterConfig(), None])
        monkeypatch.setattr(state, "get_cluster_config", lambda: next(configs))
        monkeypatch.delenv("RAY_CLUSTER_NAME", raising=False)
        monkeypatch.setattr(autoscaler, "_of_monitor", lambda: from_autoscaling_config(LAUNCHER))
        names = [[group.name for group in found.groups] for _ in range(3) if (found := autoscaler.limits())]
        assert names == [["gpu"], ["cpu", "p5"], ["cpu", "p5"]]
