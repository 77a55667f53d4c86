# SPDX-License-Identifier: Apache-2.0
"""What KubeRay 1.7.0 refuses in a RayJob and a RayCluster, in its words (`validation.go`), for the stand-in.

The API server takes these objects; the controller ends a RayJob as ``ValidationFailed``, and leaves a
RayCluster alone with an event. Not here: Redis, RocksDB, network policies, TLS, history servers, priorities.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.metadata import is_dns_1035

_MOST_OF_CLUSTER, _MOST_OF_JOB = 53, 47
_INVALID = "The RayJob spec is invalid: "


def wrong_in_rayjob(job: Manifest) -> tuple[str, str] | None:
    """Reason of the event and message of the first rule that a RayJob breaks."""
    name = job["metadata"]["name"]
    if len(name) > _MOST_OF_JOB:
        text = f"RayJob name should be no more than {_MOST_OF_JOB} characters"
        return "InvalidRayJobMetadata", f"The RayJob metadata is invalid: {text}"
    if not is_dns_1035(name):
        text = "RayJob name should be a valid DNS1035 label: [a DNS-1035 label must consist of ...]"
        return "InvalidRayJobMetadata", f"The RayJob metadata is invalid: {text}"
    first = next(_of_rayjob(job["spec"], job["metadata"].get("annotations") or {}), None)
    return None if first is None else ("InvalidRayJobSpec", first)


def wrong_in_raycluster(cluster: Manifest) -> tuple[str, str] | None:
    """Reason of the event and message of the first rule that a RayCluster breaks."""
    name = cluster["metadata"]["name"]
    if len(name) > _MOST_OF_CLUSTER:
        text = f"RayCluster name should be no more than {_MOST_OF_CLUSTER} characters"
        return "InvalidRayClusterMetadata", text
    if not is_dns_1035(name):
        return "InvalidRayClusterMetadata", "RayCluster name should be a valid DNS1035 label"
    first = next(_of_cluster(cluster["spec"]), None)
    return None if first is None else ("InvalidRayClusterSpec", first)


def _of_rayjob(spec: Manifest, annotations: Manifest) -> Iterator[str]:
    shuts_down, ttl = bool(spec.get("shutdownAfterJobFinishes")), spec.get("ttlSecondsAfterFinished") or 0
    if spec.get("suspend") and not shuts_down:
        yield f"{_INVALID}a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended"
    if ttl < 0:
        yield f"{_INVALID}TTLSecondsAfterFinished must be a non-negative integer"
    if not shuts_down and ttl > 0:
        text = "a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished"
        yield f"{_INVALID}{text}"
    if (spec.get("deletionStrategy") or {}).get("deletionRules") and shuts_down:
        both = "spec.shutdownAfterJobFinishes and spec.deletionStrategy.deletionRules"
        yield f"{_INVALID}{both} are mutually exclusive"
    selects, backoff = bool(spec.get("clusterSelector")), spec.get("backoffLimit") or 0
    if spec.get("suspend") and selects:
        yield f"{_INVALID}the ClusterSelector mode doesn't support the suspend operation"
    if spec.get("rayClusterSpec") is None and not selects:
        yield f"{_INVALID}one of RayClusterSpec or ClusterSelector must be set"
    if selects and backoff > 0:
        yield f"{_INVALID}BackoffLimit is incompatible with ClusterSelector mode"
    if spec.get("submissionMode") == "InteractiveMode" and backoff > 0:
        yield f"{_INVALID}BackoffLimit is incompatible with InteractiveMode"
    if spec.get("rayClusterSpec") is not None:
        if (spec["rayClusterSpec"].get("authOptions") or {}).get("enableK8sTokenAuth"):
            yield f"{_INVALID}K8s token auth mode is currently not supported for RayJob"
        for text in _of_cluster(spec["rayClusterSpec"]):
            yield f"{_INVALID}{text}"
    for field in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if spec.get(field) is not None and spec[field] <= 0:
            yield f"{_INVALID}{field} must be a positive integer"
    if backoff < 0:
        yield f"{_INVALID}backoffLimit must be a positive integer"


def _of_cluster(spec: Manifest) -> Iterator[str]:
    head = spec.get("headGroupSpec") or {}
    if not _containers(head):
        yield "headGroupSpec should have at least one container"
        return
    yield from _of_resources("Head", head)
    for group in spec.get("workerGroupSpecs") or ():
        yield from _of_group(group, autoscaled=bool(spec.get("enableInTreeAutoscaling")))
    options = spec.get("autoscalerOptions") or {}
    if spec.get("enableInTreeAutoscaling") and options.get("version") == "v2":
        if _restarts(head):
            yield "restartPolicy for head Pod should be Never or unset when using autoscaler V2"
        for group in spec.get("workerGroupSpecs") or ():
            if _restarts(group):
                name = f"restartPolicy for worker group {group.get('groupName', '')}"
                yield f"{name} should be Never or unset when using autoscaler V2"
    if (idle := options.get("idleTimeoutSeconds")) is not None and idle < 0:
        yield f"autoscalerOptions.idleTimeoutSeconds must be non-negative, got {idle}"
    if (spec.get("authOptions") or {}).get("mode") == "token":
        yield from _of_token(spec.get("rayVersion") or "")


def _of_group(group: Manifest, *, autoscaled: bool) -> Iterator[str]:
    name, least, most = group.get("groupName", ""), group.get("minReplicas"), group.get("maxReplicas")
    if not _containers(group):
        yield "workerGroupSpec should have at least one container"
    if not autoscaled and (least is None or most is None):
        yield f"worker group {name} must set both minReplicas and maxReplicas when autoscaling is disabled"
    for field, value in (("minReplicas", least), ("maxReplicas", most)):
        if value is not None and value < 0:
            yield f"worker group {name} has negative {field} {value}"
    if least is not None and most is not None and least > most:
        yield f"worker group {name} has minReplicas {least} greater than maxReplicas {most}"
    if autoscaled and group.get("suspend"):
        yield f"worker group {name} cannot be suspended with Autoscaler enabled"
    yield from _of_resources(name, group)


def _of_resources(name: str, group: Manifest) -> Iterator[str]:
    given = group.get("rayStartParams") or {}
    if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & set(given):
        both = "resource fields should not be set in both rayStartParams and Resources"
        yield f"{both} for {name} group; please use only one"
    if "labels" in given:
        field = f"rayStartParams['labels'] is not supported for {name} group"
        yield f"{field}; please use the top-level Labels field instead"


def _of_token(version: str) -> Iterator[str]:
    said = "authOptions.mode is 'token' but"
    if not version:
        yield f"{said} RayVersion was not specified. Ray version 2.52.0 or later is required"
        return
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        yield f'{said} RayVersion format is invalid: {version}, could not parse "{version}" as version'
    elif (int(parts[0]), int(parts[1])) < (2, 52):
        yield f"{said} minimum Ray version is 2.52.0, got {version}"


def _containers(group: Manifest) -> list[Manifest]:
    return ((group.get("template") or {}).get("spec") or {}).get("containers") or []


def _restarts(group: Manifest) -> bool:
    policy = ((group.get("template") or {}).get("spec") or {}).get("restartPolicy") or "Never"
    return policy != "Never"
