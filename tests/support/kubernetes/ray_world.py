# SPDX-License-Identifier: Apache-2.0
"""A STAND-IN for a Kubernetes with KubeRay whose heads and workers are real Ray processes of this machine.

Ray's own autoscaler for KubeRay runs beside each head and asks the stand-in's API server for workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.http_server import Authority
from tests.support.kubernetes.credentials import tls_of
from tests.support.kubernetes.nodes import Node, NodeGroup
from tests.support.kubernetes.processes import RayProcesses
from tests.support.kubernetes.world import World, world

_AUTOSCALER = "autoscaler"
_RULES = [
    {"apiGroups": [""], "resources": ["pods", "pods/resize"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "patch"]},
]
"""What KubeRay's Role for the autoscaler allows."""


@contextmanager
def ray_world(
    authority: Authority,
    python: Path,
    *,
    env: Mapping[str, str] | None = None,
    gpu_nodes: int = 4,
    **given: Any,
) -> Iterator[World]:
    """A world whose GPU nodes come while pods wait for them, served with TLS, for the length of a block.

    :param authority: its certificate is what clients trust.
    :param python: the interpreter of the clusters.
    :param env: added to the environment of every pod.
    :param gpu_nodes: the most nodes with a (fake) GPU.
    """
    runtime = RayProcesses(python, env or {})
    gpu_node = Node("gpu-pool", {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "1"})
    given.setdefault("groups", [NodeGroup(gpu_node, most=gpu_nodes)])
    with world(runtime=runtime, tls=tls_of(authority), every=0.2, **given) as kubernetes:
        kubernetes.server.access.grant(_AUTOSCALER, _RULES)
        certificate = str(authority.client(_AUTOSCALER))
        runtime.kubernetes = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT_HTTPS": str(kubernetes.web.port),
            "RAY_KUBERAY_CLIENT_CERT_PATH": certificate,
            "RAY_KUBERAY_CLIENT_KEY_PATH": certificate,
            "RAY_KUBERAY_CA_CERT_PATH": str(authority.pem),
        }
        yield kubernetes
