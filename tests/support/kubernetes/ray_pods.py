# SPDX-License-Identifier: Apache-2.0
"""Pods and service that the stand-in for KubeRay makes of a RayCluster, as `pod.go` and `service.go` do."""

from __future__ import annotations

import copy

from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.ray_start import START_COMMAND, start_command
from tests.support.kubernetes.rayjob_controller import owner_reference

HEAD_GROUP = "headgroup"
_PORTS = {"client": 10001, "gcs-server": 6379, "dashboard": 8265, "metrics": 8080, "serve": 8000}
_LONGEST_PREFIX = 50


def head_service(cluster: Manifest) -> Manifest:
    name = cluster["metadata"]["name"]
    labels = {"ray.io/cluster": name, "ray.io/node-type": "head", "ray.io/identifier": f"{name}-head"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(cluster),
            "namespace": cluster["metadata"]["namespace"],
            "labels": labels,
            "ownerReferences": [owner_reference(cluster)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "ports": [
                {"name": key, "port": port, "targetPort": port} for key, port in _ports(cluster).items()
            ],
        },
    }


def _ports(cluster: Manifest) -> dict[str, int]:
    """Those of the head's container, as they are named there, or KubeRay's own."""
    given = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0].get("ports") or ()
    found = {port.get("name") or f"{port['containerPort']}-port": port["containerPort"] for port in given}
    return {"metrics": _PORTS["metrics"], **(found or _PORTS)}


def service_name(cluster: Manifest) -> str:
    given = (cluster["spec"]["headGroupSpec"].get("headService") or {}).get("metadata") or {}
    return given.get("name") or f"{cluster['metadata']['name']}-head-svc"


def head_pod(cluster: Manifest) -> Manifest:
    name = cluster["metadata"]["name"]
    pod = _pod(cluster, cluster["spec"]["headGroupSpec"], "head", HEAD_GROUP)
    pod["metadata"]["name"] = f"{name[:_LONGEST_PREFIX]}-head"
    if cluster["spec"].get("enableInTreeAutoscaling"):
        options = cluster["spec"].get("autoscalerOptions") or {}
        sizes = {"cpu": "500m", "memory": "512Mi"}
        resources = options.get("resources") or {"requests": sizes, "limits": dict(sizes)}
        image = options.get("image") or _image(pod)
        pod["spec"]["containers"].append({"name": "autoscaler", "image": image, "resources": resources})
    return pod


def worker_pod(cluster: Manifest, group: Manifest) -> Manifest:
    prefix = f"{cluster['metadata']['name']}-{group['groupName']}"[:_LONGEST_PREFIX]
    pod = _pod(cluster, group, "worker", group["groupName"])
    pod["metadata"]["generateName"] = f"{prefix}-worker-"
    return pod


def _pod(cluster: Manifest, group: Manifest, node_type: str, group_name: str) -> Manifest:
    name = cluster["metadata"]["name"]
    template = copy.deepcopy(group["template"])
    spec = template["spec"]
    autoscaled = cluster["spec"].get("enableInTreeAutoscaling")
    v2 = (cluster["spec"].get("autoscalerOptions") or {}).get("version") == "v2"
    if autoscaled and v2:
        spec["restartPolicy"] = "Never"
    spec.setdefault("restartPolicy", "Always")
    container = spec["containers"][0]
    variables = container.setdefault("env", [])
    variables += [
        {"name": "RAY_NODE_TYPE_NAME", "value": group_name},
        {"name": "RAY_CLUSTER_NAME", "value": name},
        {"name": "RAY_CLUSTER_NAMESPACE", "value": cluster["metadata"]["namespace"]},
        {"name": START_COMMAND, "value": start_command(group, node_type, bool(autoscaled))},
    ]
    if autoscaled and v2 and node_type == "head":
        variables.append({"name": "RAY_enable_autoscaler_v2", "value": "1"})
    options = cluster["spec"].get("authOptions") or {}
    if options.get("mode") == "token":
        key = {"name": options.get("secretName") or name, "key": "auth_token"}
        variables.append({"name": "RAY_AUTH_MODE", "value": "token"})
        variables.append({"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": key}})
    given = template.get("metadata") or {}
    labels = {
        **(given.get("labels") or {}),
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": name,
        "ray.io/node-type": node_type,
        "ray.io/group": group_name,
        "ray.io/identifier": f"{name}-{node_type}"[:63],
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": cluster["metadata"]["namespace"],
            "labels": labels,
            "annotations": dict(given.get("annotations") or {}),
            "ownerReferences": [owner_reference(cluster)],
        },
        "spec": spec,
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _image(pod: Manifest) -> str:
    image: str = pod["spec"]["containers"][0].get("image", "")
    return image
