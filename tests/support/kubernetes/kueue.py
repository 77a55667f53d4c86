# SPDX-License-Identifier: Apache-2.0
"""A STAND-IN for Kueue: suspended RayJobs with a queue's label wait for quota, and are admitted whole."""

from __future__ import annotations

from collections import Counter

from tests.support.kubernetes.conditions import holds, set_condition
from tests.support.kubernetes.events import record
from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.quantities import requests_of
from tests.support.kubernetes.rayjob_controller import owner_reference
from tests.support.kubernetes.store import Store

QUEUE = "kueue.x-k8s.io/queue-name"
_OVER = {"Complete", "Failed", "ValidationFailed"}


class Kueue:
    """Admits RayJobs in their order.

    :ivar queues: quota of each LocalQueue: amounts by resource, as ``{"nvidia.com/gpu": 4}``.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queues: dict[str, dict[str, float]] = {}

    def step(self) -> None:
        """Look once at each RayJob that names a queue."""
        jobs = [job for job in self._store.all("RayJob") if (job["metadata"].get("labels") or {}).get(QUEUE)]
        for job in sorted(jobs, key=lambda job: job["metadata"]["creationTimestamp"]):
            if job["metadata"].get("deletionTimestamp"):
                continue
            workload = self._workload(job)
            if job.get("status", {}).get("jobDeploymentStatus") in _OVER:
                self._tell(workload, "Finished", True, "JobFinished", "Job finished")
            elif not holds(workload, "Admitted"):
                self._try(job, workload)

    def evict(
        self, name: str, namespace: str = "default", why: str = "Preempted to accommodate a workload"
    ) -> None:
        """Take the quota back: the RayJob is suspended, and waits again."""
        job = self._store.find("RayJob", namespace, name)
        assert job is not None
        workload = self._workload(job)
        for type_ in ("QuotaReserved", "Admitted"):
            workload = self._tell(workload, type_, False, "Preempted", why)
        self._tell(workload, "Evicted", True, "Preempted", why)
        job["spec"]["suspend"] = True
        self._store.replace(job)

    def _try(self, job: Manifest, workload: Manifest) -> None:
        queue = job["metadata"]["labels"][QUEUE]
        if queue not in self.queues:
            text = f"LocalQueue {queue} doesn't exist"
            self._tell(workload, "QuotaReserved", False, "Inadmissible", text)
            return
        wanted = _requests(job)
        for resource, most in self.queues[queue].items():
            used = sum(amounts.get(resource, 0.0) for amounts in self._admitted(queue))
            if wanted.get(resource, 0.0) > most - used:
                short = wanted[resource] - (most - used)
                text = (
                    "couldn't assign flavors to pod set head: insufficient unused quota for "
                    f"{resource} in flavor default-flavor, {short:g} more needed"
                )
                self._tell(workload, "QuotaReserved", False, "Pending", text)
                return
        text = f"Quota reserved in ClusterQueue {queue}"
        workload = self._tell(workload, "QuotaReserved", True, "QuotaReserved", text)
        self._tell(workload, "Admitted", True, "Admitted", "The workload is admitted")
        job["spec"]["suspend"] = False
        record(
            self._store, job, "Started", f"Admitted by clusterQueue {queue}", source="kueue-rayjob-controller"
        )
        self._store.replace(job)

    def _admitted(self, queue: str) -> list[dict[str, float]]:
        found = []
        for workload in self._store.all("Workload"):
            mine = workload["spec"]["queueName"] == queue
            if mine and holds(workload, "Admitted") and not holds(workload, "Finished"):
                owner = self._store.with_uid(workload["metadata"]["ownerReferences"][0]["uid"])
                if owner is not None:
                    found.append(_requests(owner))
        return found

    def _workload(self, job: Manifest) -> Manifest:
        """The Workload of a RayJob, made if it is not there."""
        uid, namespace = job["metadata"]["uid"], job["metadata"]["namespace"]
        name = f"rayjob-{job['metadata']['name']}-{uid[:5]}"
        found = self._store.find("Workload", namespace, name)
        if found is not None:
            return found
        head = {
            "name": name,
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/job-uid": uid},
            "ownerReferences": [owner_reference(job)],
        }
        return self._store.create({
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": head,
            "spec": {"queueName": job["metadata"]["labels"][QUEUE]},
        })

    def _tell(self, workload: Manifest, type_: str, status: bool, reason: str, message: str) -> Manifest:
        set_condition(workload, type_, status, reason, message, now=self._store.clock.timestamp())
        return self._store.replace(workload)


def _requests(job: Manifest) -> dict[str, float]:
    total = Counter[str]()
    spec = job["spec"]["rayClusterSpec"]
    for group in (spec["headGroupSpec"], *(spec.get("workerGroupSpecs") or ())):
        count = group.get("replicas", 1) if "groupName" in group else 1
        for resource, number in requests_of(group["template"]).items():
            total[resource] += number * count
    return dict(total)
