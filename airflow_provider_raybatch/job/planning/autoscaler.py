# SPDX-License-Identifier: Apache-2.0
"""The nodes that the cluster's autoscaler may add, from the first source that knows them.

Ray has no public call for it. Anyscale reports them to the cluster, and Ray's private call tells what was
reported. Ray's own autoscaler (2.60) reports nothing, so its configuration is read: with KubeRay from the
Kubernetes API, with the cluster launcher from a file on the head, where the driver runs.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import ray

from airflow_provider_raybatch.job.planning.node_groups import UNLIMITED, AutoscalerLimits, NodeGroup

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT = 2.0
_TYPE_LABEL = "ray.io/accelerator-type"

_log = logging.getLogger(__name__)


def limits() -> AutoscalerLimits | None:
    """What the autoscaler may add; ``None`` without one, or if no source knows."""
    for source in (_of_reported_config, _of_ray_cluster, _of_monitor):
        try:
            found = source()
        except Exception as error:  # private API of Ray, Kubernetes, and files of other tools
            _log.debug("%s tells nothing of the autoscaler: %r", source.__name__, error)
            continue
        if found is not None and found.groups:
            return found
    return None


def from_reported_config(config: Any) -> AutoscalerLimits:
    """From Ray's ``ClusterConfig`` message, where a count of -1 is no limit."""
    groups = (
        NodeGroup(group.name, _amounts(group.resources), _count(group.max_count))
        for group in config.node_group_configs
    )
    return AutoscalerLimits(
        tuple(group for group in groups if group.max_nodes and group.node),
        max_resources=_amounts(config.max_resources),
    )


def from_autoscaling_config(config: Mapping[str, Any]) -> AutoscalerLimits:
    """From the configuration of Ray's autoscaler.

    :raises ValueError: a node type has no resources.
    """
    max_nodes = _count(config.get("max_workers", -1))
    groups = []
    for name, group in config["available_node_types"].items():
        most = _count(group.get("max_workers", max_nodes if name != config.get("head_node_type") else 0))
        node = _amounts(group.get("resources") or {})
        if most == 0:
            continue
        if not node:
            raise ValueError(f"the node type {name} has no resources")
        if node.get("GPU") and (kind := (group.get("labels") or {}).get(_TYPE_LABEL)):
            node.setdefault(f"accelerator_type:{kind}", 1.0)
        groups.append(NodeGroup(str(name), node, most))
    return AutoscalerLimits(tuple(groups), max_nodes)


def _of_reported_config() -> AutoscalerLimits | None:
    from ray._private.state import state

    config = state.get_cluster_config()
    return None if config is None else from_reported_config(config)


def _of_ray_cluster() -> AutoscalerLimits | None:
    """From the RayCluster of this pod, as KubeRay's autoscaler reads it, which runs in the same pod."""
    name = os.environ.get("RAY_CLUSTER_NAME")  # KubeRay sets it
    if not name:
        return None
    try:
        definition = _ray_cluster(name)
    except OSError:  # again: without an answer, a job that needs more GPUs is refused for good
        definition = _ray_cluster(name)
    if definition["spec"].get("enableInTreeAutoscaling") is not True:
        return None
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    return from_autoscaling_config(_derive_autoscaling_config_from_ray_cr(definition))


def _ray_cluster(name: str) -> Any:
    """The RayCluster, from the Kubernetes API with the pod's own service account.

    :raises OSError: the API does not answer.
    :raises ValueError: it refuses, or its answer is not JSON.
    """
    # KubeRay sets the namespace since 1.6.
    namespace = (
        os.environ.get("RAY_CLUSTER_NAMESPACE") or (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    )
    token = (_SERVICE_ACCOUNT / "token").read_text().strip()
    trusted = ssl.create_default_context(cafile=str(_SERVICE_ACCOUNT / "ca.crt"))
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    # Not urllib, which would use a proxy of the environment.
    with closing(http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=trusted)) as api:
        path = f"/apis/ray.io/v1/namespaces/{namespace}/rayclusters/{name}"
        api.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = api.getresponse()
        if answer.status != http.client.OK:
            raise ValueError(f"the Kubernetes API answered {answer.status} for {path}")
        return json.loads(answer.read())


def _of_monitor() -> AutoscalerLimits | None:
    return of_monitor(ray.get_runtime_context().gcs_address)


def of_monitor(gcs_address: str) -> AutoscalerLimits | None:
    """From the configuration file of the autoscaler's process on this host, if it serves this cluster."""
    import psutil  # Ray brings it
    import yaml  # so it does

    for process in psutil.process_iter(["cmdline"]):
        arguments = process.info["cmdline"] or []
        options = dict(one[2:].split("=", 1) for one in arguments if one.startswith("--") and "=" in one)
        file = options.get("autoscaling-config")
        if file is None or options.get("gcs-address") != gcs_address:
            continue
        if any(Path(one).name == "monitor.py" for one in arguments):
            with suppress(psutil.Error):
                path = Path(process.cwd(), Path(file).expanduser())
                return from_autoscaling_config(yaml.safe_load(path.read_text()))
    return None


def _amounts(resources: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(amount) for name, amount in resources.items()}


def _count(nodes: Any) -> int:
    return UNLIMITED if int(nodes) < 0 else int(nodes)
