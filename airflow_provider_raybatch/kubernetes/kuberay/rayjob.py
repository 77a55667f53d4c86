# SPDX-License-Identifier: Apache-2.0
"""The RayJob of a run: its name and labels, what KubeRay reports of it, and what a run keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey
from airflow_provider_raybatch.contract.text import hex_digest, json_digest

RUN = "raybatch/run"
"""Label: which run of which task, the same for all its clusters; a digest."""
TASK = "raybatch/task"
"""Label: which task instance; the digest of its key."""
INSTALLATION = "raybatch/airflow"
"""Label: which Airflow, so that two of them never touch each other's clusters."""
NUMBER = "raybatch/number"
"""Annotation: number of the run's cluster, from 0; its Ray job has the same one."""
FINGERPRINT = "raybatch/fingerprint"
"""Annotation: of the arguments of the job."""
RUN_TOKEN = "raybatch/run-token"
"""Annotation: token of the run."""

LEASE = "raybatch/shared"
"""Annotation: the lease in seconds of a cluster that tasks of one DAG run lease; absent from all others."""

TERMINAL = frozenset({"Complete", "Failed", "ValidationFailed"})
"""`jobDeploymentStatus` after which KubeRay does nothing more but clean up (its own list lacks the last)."""

FOR_EVER = 2**31 - 1
"""Seconds: the longest deadline that KubeRay takes, of a cluster that ends with its job alone."""

_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})


@dataclass(frozen=True)
class RayJobState:
    """What is used of a RayJob.

    :param number: see :data:`NUMBER`; -1 where someone has removed the annotation.
    :param deleting: whether it has been deleted, and waits for what it owns to go.
    :param suspended: whether it waits for a queue (Kueue) to admit it.
    :param deployment_status: KubeRay's `jobDeploymentStatus`; empty before KubeRay has seen it.
    :param job_status: of the Ray job, as KubeRay saw it; empty before.
    :param job_id: the Ray job that KubeRay polls; empty until we have submitted ours.
    :param started: epoch seconds from which `active_deadline` counts; ``None`` before the start.
    :param active_deadline: `activeDeadlineSeconds`.
    :param pre_running_deadline: `preRunningDeadlineSeconds`, counted from `started`, too, until KubeRay polls
        our Ray job.
    """

    name: str
    uid: str
    number: int
    run_token: str
    fingerprint: str
    created: float
    deleting: bool
    suspended: bool
    deployment_status: str
    job_status: str
    job_id: str
    reason: str
    message: str
    ray_cluster: str
    started: float | None
    active_deadline: int | None
    secret: str
    pre_running_deadline: int | None = None

    @property
    def terminal(self) -> bool:
        """Whether KubeRay has ended it."""
        return self.deployment_status in TERMINAL

    @property
    def living(self) -> bool:
        """Whether its cluster is there or comes, and a job may run on it."""
        return not self.deleting and not self.terminal

    @property
    def may_run_job(self) -> bool:
        """Whether its Ray job may still run: also past a deadline, until KubeRay deletes the cluster."""
        return self.living or (bool(self.job_id) and self.job_status not in _ENDED)


@dataclass(frozen=True)
class ClusterClaim:
    """The RayJob that a run holds: plain data that finds, follows and releases it.

    :param number: of the run's cluster; its Ray job's submission id has the same number.
    :param secret: name of the Secret with the cluster's token.
    """

    namespace: str
    name: str
    uid: str
    number: int
    secret: str

    def to_json(self) -> dict[str, Any]:
        """For a trigger, an XCom or a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ClusterClaim:
        """What :meth:`to_json` made."""
        return cls(**data)


def rayjob_state(manifest: Mapping[str, Any]) -> RayJobState:
    """Read a RayJob as the API server returned it."""
    metadata, spec, status = (manifest.get(part) or {} for part in ("metadata", "spec", "status"))
    annotations = metadata.get("annotations") or {}
    number = str(annotations.get(NUMBER, ""))
    auth = (spec.get("rayClusterSpec") or {}).get("authOptions") or {}
    return RayJobState(
        name=metadata["name"],
        uid=metadata["uid"],
        number=int(number) if number.isdecimal() else -1,
        run_token=annotations.get(RUN_TOKEN, ""),
        fingerprint=annotations.get(FINGERPRINT, ""),
        created=epoch(metadata["creationTimestamp"]) or 0.0,
        deleting=metadata.get("deletionTimestamp") is not None,
        suspended=bool(spec.get("suspend")) or status.get("jobDeploymentStatus") == "Suspended",
        deployment_status=status.get("jobDeploymentStatus") or "",
        job_status=status.get("jobStatus") or "",
        job_id=spec.get("jobId") or status.get("jobId") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        ray_cluster=status.get("rayClusterName") or "",
        started=epoch(status.get("startTime")),
        active_deadline=spec.get("activeDeadlineSeconds"),
        secret=auth.get("secretName") or "",
        pre_running_deadline=spec.get("preRunningDeadlineSeconds"),
    )


def epoch(text: str | None) -> float | None:
    """Epoch seconds of a time as Kubernetes writes it; ``None`` for none."""
    return datetime.fromisoformat(text).timestamp() if text else None


_DIGITS = 24


def rayjob_name(key: SubmissionKey, number: int) -> str:
    """Name of the run's RayJob `number`."""
    return f"raybatch-{run_label(key)[:_DIGITS]}-{number}"


def installation_label(namespace: str) -> str:
    """Value of the label of one Airflow.

    :param namespace: the id of the Airflow installation, as in its tasks' keys.
    """
    return hex_digest(namespace)


def run_labels(key: SubmissionKey) -> dict[str, str]:
    """Labels of all that a run creates."""
    return {
        RUN: run_label(key),
        TASK: key.task.digest,
        INSTALLATION: installation_label(key.task.namespace),
    }


def run_label(key: SubmissionKey) -> str:
    """Value of :data:`RUN`, 32 hex digits: the same for all clusters of one run of a task."""
    return json_digest([key.task.digest, key.run_token])


def of_run(key: SubmissionKey) -> str:
    """Label selector of the clusters of a run."""
    return f"{RUN}={run_label(key)}"


def of_task(key: SubmissionKey) -> str:
    """Label selector of the clusters of all runs of a task."""
    return f"{TASK}={key.task.digest}"
