# SPDX-License-Identifier: Apache-2.0
"""KubeRay's controller of RayJobs, as `rayjob_controller.go` of 1.7.0 goes: a STAND-IN for it.

InteractiveMode, which the provider uses; in the other modes nothing submits the job. As in KubeRay:

- `Waiting` looks at `preRunningDeadlineSeconds` alone: neither `activeDeadlineSeconds` nor `suspend`;
- a job that the head does not know (its head is a new one) leaves the RayJob `Running`;
- a head that does not answer for 300 s ends it, and the clock of that is not reset by "unknown job";
- a RayCluster that others delete is made again while `Running`, and not while `Waiting`;
- `shutdownAfterJobFinishes` deletes the RayCluster, not the RayJob.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes.clock import epoch_of
from tests.support.kubernetes.events import record
from tests.support.kubernetes.head_api import HeadSilentError, JobUnknownError, job_details, stop_job
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.kuberay_rules import wrong_in_rayjob
from tests.support.kubernetes.server import ApiServer
from tests.support.kubernetes.store import key_of, suffix

FINALIZER = "ray.io/rayjob-finalizer"
_SOURCE = "rayjob-controller"
_ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
_OF_A_CLUSTER = (
    "rayClusterStatus", "rayClusterName", "dashboardURL", "jobId", "jobStatus", "message", "reason",
    "jobStatusCheckFailureStartTime",
)  # fmt: skip
_OVER = "The RayJob has passed the {field}. StartTime: {start}. {name}: {seconds}"


class RayJobController:
    """Makes RayClusters for RayJobs, follows their jobs, and ends them.

    :param silence: seconds without an answer of the head after which a RayJob fails.
    """

    def __init__(self, server: ApiServer, *, silence: float = 300.0) -> None:
        self._server = server
        self._store = server.store
        self._silence = silence

    def step(self) -> None:
        """Look once at each RayJob."""
        for job in self._store.all("RayJob"):
            if job["spec"].get("managedBy") not in {None, "", "ray.io/kuberay-operator"}:
                continue
            if job["metadata"].get("deletionTimestamp"):
                self._release(job)
            else:
                self._reconcile(job)

    def _release(self, job: Manifest) -> None:
        finalizers = job["metadata"].get("finalizers", [])
        if FINALIZER not in finalizers:
            return
        status = job.get("status", {})
        if status.get("jobStatus") not in _ENDED and status.get("jobId"):
            stop_job(self._server, job)
        job["metadata"]["finalizers"] = [each for each in finalizers if each != FINALIZER]
        self._store.replace(job)

    def _reconcile(self, job: Manifest) -> None:
        if (wrong := wrong_in_rayjob(job)) is not None:
            reason, message = wrong
            name = f"{job['metadata']['namespace']}/{job['metadata']['name']}"
            record(self._store, job, reason, f"{name}: {message}", source=_SOURCE, warning=True)
            failed = "ValidationFailed"
            self._set(job, jobDeploymentStatus=failed, reason=failed, message=message)
            return
        states: dict[str, Callable[[Manifest, Manifest], None]] = {
            "": self._begin,
            "Initializing": self._initialize,
            "Waiting": self._wait,
            "Running": self._follow,
            "Suspending": self._suspend,
            "Suspended": self._resume,
            "Complete": self._clean_up,
            "Failed": self._clean_up,
        }
        status = job.setdefault("status", {})
        if (act := states.get(status.get("jobDeploymentStatus") or "")) is not None:
            act(job, status)

    def _begin(self, job: Manifest, status: Manifest) -> None:
        finalizers = job["metadata"].setdefault("finalizers", [])
        if FINALIZER not in finalizers:
            finalizers.append(FINALIZER)
        selected = (job["spec"].get("clusterSelector") or {}).get("ray.io/cluster")
        name = selected or f"{job['metadata']['name']}-{suffix()}"
        status["rayClusterName"] = status.get("rayClusterName") or name
        status |= {"jobDeploymentStatus": "Initializing", "startTime": self._store.clock.timestamp()}
        self._store.replace(job)

    def _initialize(self, job: Manifest, status: Manifest) -> None:
        if job["spec"].get("suspend"):
            self._set(job, jobDeploymentStatus="Suspending")
        elif not self._is_over(job, "activeDeadlineSeconds") and not self._is_over(
            job, "preRunningDeadlineSeconds"
        ):
            cluster = self._cluster(job)
            if cluster is None:
                return
            status["rayClusterStatus"] = cluster.get("status", {})
            if status["rayClusterStatus"].get("state") == "ready":
                if (url := self._dashboard_url(status, job["metadata"]["namespace"])) is None:
                    return
                status["dashboardURL"] = url
                interactive = job["spec"].get("submissionMode") == "InteractiveMode"
                status["jobDeploymentStatus"] = "Waiting" if interactive else "Running"
            self._store.replace(job)

    def _dashboard_url(self, status: Manifest, namespace: str) -> str | None:
        """Where the head's dashboard is; without a port of that name, KubeRay never finds it."""
        name = status["rayClusterStatus"]["head"]["serviceName"]
        service = self._store.find("Service", namespace, name)
        ports = {port["name"]: port["port"] for port in (service or {"spec": {"ports": ()}})["spec"]["ports"]}
        return f"{name}.{namespace}.svc.cluster.local:{ports['dashboard']}" if "dashboard" in ports else None

    def _wait(self, job: Manifest, status: Manifest) -> None:
        if self._is_over(job, "preRunningDeadlineSeconds"):
            return
        if job["spec"].get("jobId"):
            self._set(job, jobId=job["spec"]["jobId"], jobDeploymentStatus="Running")

    def _follow(self, job: Manifest, status: Manifest) -> None:
        if job["spec"].get("suspend"):
            self._set(job, jobDeploymentStatus="Suspending")
            return
        if self._is_over(job, "activeDeadlineSeconds") or self._is_silent(job):
            return
        cluster = self._cluster(job)
        if cluster is None:
            return
        try:
            details = job_details(self._server, job)
        except JobUnknownError:
            return
        except HeadSilentError:
            if not status.get("jobStatusCheckFailureStartTime"):
                self._set(job, jobStatusCheckFailureStartTime=self._store.clock.timestamp())
            return
        ended = details["status"] in _ENDED
        changed: dict[str, Any] = {
            "jobStatusCheckFailureStartTime": None,
            "rayClusterStatus": cluster.get("status", {}),
            "jobStatus": details["status"],
            "message": details.get("message") or "",
        }
        if ended:
            failed = details["status"] == "FAILED"
            if failed:
                self._fail(job, "AppFailed", changed.pop("message"), **changed)
                return
            count = {"succeeded": status.get("succeeded", 0) + (details["status"] == "SUCCEEDED")}
            changed |= {"jobDeploymentStatus": "Complete", "endTime": self._store.clock.timestamp(), **count}
        self._set(job, **changed)

    def _suspend(self, job: Manifest, status: Manifest) -> None:
        if self._delete_cluster(job):
            cleared = dict.fromkeys(_OF_A_CLUSTER)
            self._set(job, **cleared, jobDeploymentStatus="Suspended")

    def _resume(self, job: Manifest, status: Manifest) -> None:
        if not job["spec"].get("suspend"):
            self._set(job, jobDeploymentStatus=None)

    def _clean_up(self, job: Manifest, status: Manifest) -> None:
        spec = job["spec"]
        if spec.get("clusterSelector") or not spec.get("shutdownAfterJobFinishes"):
            return
        if self._now() >= epoch_of(status["endTime"]) + (spec.get("ttlSecondsAfterFinished") or 0):
            self._delete_cluster(job)

    def _is_over(self, job: Manifest, field: str) -> bool:
        """Fail a RayJob whose deadline is over."""
        seconds, start = job["spec"].get(field), job["status"]["startTime"]
        if seconds is None or self._now() < epoch_of(start) + seconds:
            return False
        name = field[0].upper() + field[1:]
        reason = "DeadlineExceeded" if field == "activeDeadlineSeconds" else "PreRunningDeadlineExceeded"
        self._fail(job, reason, _OVER.format(field=field, name=name, start=start, seconds=seconds))
        return True

    def _is_silent(self, job: Manifest) -> bool:
        """Fail a RayJob whose head has not answered for too long."""
        since = job["status"].get("jobStatusCheckFailureStartTime")
        if not since or self._now() < epoch_of(since) + self._silence:
            return False
        text = f"Job status checks have been failing since {since}; exceeded timeout of {self._silence:.0f}s"
        self._fail(job, "JobStatusCheckTimeoutExceeded", text)
        return True

    def _fail(self, job: Manifest, reason: str, message: str, **more: Any) -> None:
        ended = {"endTime": self._store.clock.timestamp(), "failed": job["status"].get("failed", 0) + 1}
        self._set(job, jobDeploymentStatus="Failed", reason=reason, message=message, **ended, **more)

    def _set(self, job: Manifest, **fields: Any) -> None:
        status = job.setdefault("status", {})
        for key, value in fields.items():
            if value is None:
                status.pop(key, None)
            else:
                status[key] = value
        self._store.replace(job)

    def _cluster(self, job: Manifest) -> Manifest | None:
        """The RayCluster of a RayJob, made if it is not there."""
        namespace, name = job["metadata"]["namespace"], job["status"]["rayClusterName"]
        found = self._store.find("RayCluster", namespace, name)
        if found is not None or job["spec"].get("clusterSelector"):
            return found
        metadata = job["metadata"]
        labels = {
            **(metadata.get("labels") or {}),
            "ray.io/originated-from-cr-name": metadata["name"],
            "ray.io/originated-from-crd": "RayJob",
            "ray.io/job-submission-mode": job["spec"].get("submissionMode", "K8sJobMode"),
        }
        made = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": labels,
                "annotations": dict(metadata.get("annotations") or {}),
                "ownerReferences": [owner_reference(job)],
            },
            "spec": copy.deepcopy(job["spec"]["rayClusterSpec"]),
        }
        created = self._store.create(made)
        record(
            self._store, job, "CreatedRayCluster", f"Created RayCluster {namespace}/{name}", source=_SOURCE
        )
        return created

    def _delete_cluster(self, job: Manifest) -> bool:
        """Delete the RayCluster of a RayJob; whether it is gone."""
        found = self._store.find(
            "RayCluster", job["metadata"]["namespace"], job["status"].get("rayClusterName", "")
        )
        if found is not None and not found["metadata"].get("deletionTimestamp"):
            self._store.delete(key_of(found))
            name = f"{found['metadata']['namespace']}/{found['metadata']['name']}"
            record(self._store, job, "DeletedRayCluster", f"Deleted cluster {name}", source=_SOURCE)
        return found is None

    def _now(self) -> float:
        return self._store.clock.now()


def owner_reference(owner: Manifest) -> Manifest:
    """As a controller marks what it owns."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
