# SPDX-License-Identifier: Apache-2.0
"""KubeRay's controller of RayClusters, as `raycluster_controller.go` of 1.7.0 goes: a STAND-IN for it."""

from __future__ import annotations

from tests.support.kubernetes.conditions import condition, drop_condition, holds, set_condition
from tests.support.kubernetes.events import record
from tests.support.kubernetes.kinds import RESOURCES, Manifest
from tests.support.kubernetes.kuberay_rules import wrong_in_raycluster
from tests.support.kubernetes.ray_pods import HEAD_GROUP, head_pod, head_service, service_name, worker_pod
from tests.support.kubernetes.refusals import RefusedError
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.store import key_of

_SOURCE = "raycluster-controller"


class RayClusterController:
    """Makes and replaces pods of RayClusters, and says how they are."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._store = server.store

    def step(self) -> None:
        """Look once at each RayCluster."""
        for cluster in self._store.all("RayCluster"):
            if cluster["metadata"].get("deletionTimestamp"):
                continue
            if (wrong := wrong_in_raycluster(cluster)) is not None:
                name = f"{cluster['metadata']['namespace']}/{cluster['metadata']['name']}"
                text = f"The RayCluster spec is invalid {name}: {wrong[1]}"
                record(self._store, cluster, wrong[0], text, source=_SOURCE, warning=True)
                continue
            self._reconcile(cluster)

    def _reconcile(self, cluster: Manifest) -> None:
        namespace = cluster["metadata"]["namespace"]
        if self._store.find("Service", namespace, service_name(cluster)) is None:
            self._store.create(head_service(cluster))
        failure = None
        if cluster["spec"].get("suspend"):
            for pod in self._pods(cluster):
                self._delete(pod)
        else:
            failure = self._head(cluster) or self._workers(cluster)
        self._tell(cluster, failure)

    def _head(self, cluster: Manifest) -> tuple[str, str] | None:
        heads = self._pods(cluster, HEAD_GROUP)
        if not heads:
            return self._create(cluster, head_pod(cluster), "Head")
        if _has_ended(heads[0]):
            self._delete(heads[0])
            self._say_deleted(cluster, heads[0], "Head")
            return "", "the head is deleted"
        return None

    def _workers(self, cluster: Manifest) -> tuple[str, str] | None:
        for group in cluster["spec"].get("workerGroupSpecs") or ():
            pods = self._pods(cluster, group["groupName"])
            ended = [pod for pod in pods if _has_ended(pod)]
            for pod in ended:
                self._delete(pod)
                self._say_deleted(cluster, pod, "Worker")
            if ended:
                return "", "unhealthy workers are deleted"
            unwanted = (group.get("scaleStrategy") or {}).get("workersToDelete") or ()
            for pod in pods:
                if pod["metadata"]["name"] in unwanted:
                    self._delete(pod)
            left = [pod for pod in pods if pod["metadata"]["name"] not in unwanted]
            for _ in range(_desired(group) - len(left)):
                if (failure := self._create(cluster, worker_pod(cluster, group), "Worker")) is not None:
                    return failure
            if not cluster["spec"].get("enableInTreeAutoscaling"):
                for pod in left[_desired(group) :]:
                    self._delete(pod)
        return None

    def _create(self, cluster: Manifest, pod: Manifest, what: str) -> tuple[str, str] | None:
        """Create a pod; what a quota or a webhook says against it is the cluster's condition, too."""
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata.get("name") or metadata["generateName"]
        metadata["name"] = name
        try:
            self._server.access.admit("create", RESOURCES["Pod"], pod, self._store.all("Pod", namespace))
            if "generateName" in metadata:
                del metadata["name"]
            name = self._store.create(pod)["metadata"]["name"]
        except RefusedError as refusal:
            text = f"Failed to create {what.lower()} Pod {namespace}/{name}, {refusal.message}"
            record(self._store, cluster, f"FailedToCreate{what}Pod", text, source=_SOURCE, warning=True)
            return f"FailedCreate{what}Pod", refusal.message
        text = f"Created {what.lower()} Pod {namespace}/{name}"
        record(self._store, cluster, f"Created{what}Pod", text, source=_SOURCE)
        return None

    def _delete(self, pod: Manifest) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            self._store.delete(key_of(pod))

    def _say_deleted(self, cluster: Manifest, pod: Manifest, what: str) -> None:
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        phase, policy = pod["status"].get("phase"), pod["spec"].get("restartPolicy", "Always")
        text = (
            f"Deleted {what.lower()} Pod {name}; Pod status: {phase}; Pod restart policy: {policy}; "
            f"Ray container terminated status: {_terminated(pod)}"
        )
        record(self._store, cluster, f"Deleted{what}Pod", text, source=_SOURCE)

    def _pods(self, cluster: Manifest, group: str | None = None) -> list[Manifest]:
        found = []
        for pod in self._store.all("Pod", cluster["metadata"]["namespace"]):
            labels = pod["metadata"].get("labels") or {}
            mine = labels.get("ray.io/cluster") == cluster["metadata"]["name"]
            if mine and group in {None, labels.get("ray.io/group")}:
                found.append(pod)
        return found

    def _tell(self, cluster: Manifest, failure: tuple[str, str] | None) -> None:
        """Write the cluster's status."""
        now = self._store.clock.timestamp()
        pods, groups = self._pods(cluster), cluster["spec"].get("workerGroupSpecs") or ()
        heads = [pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
        workers = [pod for pod in pods if pod not in heads]
        status = cluster.setdefault("status", {})
        before = status.get("state")
        status |= {
            "observedGeneration": cluster["metadata"]["generation"],
            "desiredWorkerReplicas": sum(_desired(group) for group in groups),
            "readyWorkerReplicas": sum(holds(pod, "Ready") for pod in workers),
            "availableWorkerReplicas": sum(pod["status"].get("phase") == "Running" for pod in workers),
            "head": {
                "serviceName": service_name(cluster),
                "podName": heads[0]["metadata"]["name"] if heads else "",
            },
        }
        if failure is None:
            drop_condition(cluster, "ReplicaFailure")
        elif failure[0]:
            set_condition(cluster, "ReplicaFailure", True, *failure, now=now)
        _tell_head(cluster, heads, now)
        all_run = bool(pods) and all(holds(pod, "Ready") for pod in pods)
        if all_run and not holds(cluster, "RayClusterProvisioned"):
            text = "All Ray Pods are ready for the first time"
            reason = "AllPodRunningAndReadyFirstTime"
            set_condition(cluster, "RayClusterProvisioned", True, reason, text, now=now)
        elif not holds(cluster, "RayClusterProvisioned"):
            text = "RayCluster Pods are being provisioned for first time"
            reason = "RayClusterPodsProvisioning"
            set_condition(cluster, "RayClusterProvisioned", False, reason, text, now=now)
        if failure is None and all_run and len(pods) == status["desiredWorkerReplicas"] + 1:
            status["state"] = "ready"
        if cluster["spec"].get("suspend") and not pods:
            status["state"] = "suspended"
        if status.get("state") != before:
            status.setdefault("stateTransitionTimes", {})[status["state"]] = now
        self._store.replace(cluster)


def _tell_head(cluster: Manifest, heads: list[Manifest], now: str) -> None:
    if not heads:
        set_condition(cluster, "HeadPodReady", False, "HeadPodNotFound", "Head Pod not found", now=now)
        return
    ready = condition(heads[0], "Ready") or {"status": "Unknown"}
    reason = ready.get("reason") or ("HeadPodRunningAndReady" if ready["status"] == "True" else "Unknown")
    message = ready.get("message", "")
    if reason == "ContainersNotReady":
        for container in heads[0]["status"].get("containerStatuses", ()):
            state = container["state"].get("waiting") or container["state"].get("terminated")
            if state and not container["ready"]:
                reason = state["reason"]
                message += f"; {container['name']}: {state.get('message', '')}"
                break
    set_condition(cluster, "HeadPodReady", ready["status"] == "True", reason, message, now=now)


def _desired(group: Manifest) -> int:
    if group.get("suspend"):
        return 0
    least, most = group.get("minReplicas") or 0, group.get("maxReplicas")
    wanted = max(group.get("replicas") or 0, least)
    return min(wanted, most if most is not None else wanted) * max(1, group.get("numOfHosts") or 1)


def _terminated(pod: Manifest) -> str:
    """The end of a pod's first container, as Go prints it."""
    main = pod["spec"]["containers"][0]["name"]
    for each in pod["status"].get("containerStatuses", ()):
        if each["name"] == main and (ended := each["state"].get("terminated")) is not None:
            return (
                f"&ContainerStateTerminated{{ExitCode:{ended['exitCode']},Signal:0,Reason:{ended['reason']},"
                f"Message:{ended.get('message', '')},StartedAt:{ended['startedAt']},"
                f"FinishedAt:{ended['finishedAt']},ContainerID:,}}"
            )
    return "nil"


def _has_ended(pod: Manifest) -> bool:
    """Whether KubeRay replaces a pod: it has ended and does not restart by itself."""
    if pod["metadata"].get("deletionTimestamp"):
        return False
    status = pod["status"]
    if status.get("phase") in {"Failed", "Succeeded"}:
        return True
    main = pod["spec"]["containers"][0]["name"]
    ended = any(
        each["name"] == main and "terminated" in each["state"] for each in status.get("containerStatuses", ())
    )
    return ended and pod["spec"].get("restartPolicy") == "Never"
