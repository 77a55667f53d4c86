# SPDX-License-Identifier: Apache-2.0
"""RayJobs, their clusters and their Ray jobs in memory, and KubeRay's steps, as its source has them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterUnreachableError, JobExistsError
from airflow_provider_raybatch.cluster.jobs_api.models import JobInfo, JobRequest, JobStatus
from airflow_provider_raybatch.cluster.submit.resolve import RUN_TOKEN as TOKEN_OF_JOB
from airflow_provider_raybatch.kubernetes.api.errors import ChangedObjectError, ObjectExistsError
from airflow_provider_raybatch.kubernetes.kuberay.lifecycle import OF_RAYJOB
from airflow_provider_raybatch.kubernetes.kuberay.rayjob import RUN_TOKEN, TERMINAL
from tests.support.kubernetes.clock import timestamp
from tests.unit.model.process import Wrong

START = 1_700_000_000.0
WORKS, TTL, GRACE = 25.0, 30.0, 20.0
"""Seconds that a job takes, that an ended cluster stays, and that pods take to end."""

Step = tuple[Any, ...]


@dataclass
class Job:
    """A Ray job."""

    metadata: dict[str, str]
    ends: float
    status: JobStatus = JobStatus.RUNNING

    @property
    def token(self) -> str:
        return self.metadata[TOKEN_OF_JOB]


@dataclass
class Head:
    """A RayCluster. A restart of its head loses its jobs."""

    session: int
    jobs: dict[str, Job] = field(default_factory=dict)


@dataclass
class Object:
    """A RayJob.

    :param started: epoch seconds from which its deadlines count.
    :param suspended: whether Kueue has taken its quota away.
    """

    manifest: dict[str, Any]
    uid: str
    created: float
    status: str = ""
    job_status: str = ""
    reason: str = ""
    started: float | None = None
    ended: float = 0.0
    deleting: bool = False
    suspended: bool = False
    head: Head | None = None

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.manifest["spec"])

    @property
    def token(self) -> str:
        return str(self.manifest["metadata"]["annotations"][RUN_TOKEN])

    @property
    def secret(self) -> str:
        return str(self.spec["rayClusterSpec"]["authOptions"]["secretName"])

    def deadline(self) -> float:
        """When KubeRay ends it, in its present state."""
        assert self.started is not None
        fields = {
            "Initializing": ("activeDeadlineSeconds", "preRunningDeadlineSeconds"),
            "Waiting": ("preRunningDeadlineSeconds",),  # KubeRay checks no other one here
            "Running": ("activeDeadlineSeconds",),
        }[self.status]
        return self.started + min(self.spec[name] for name in fields)

    def answer(self) -> dict[str, Any]:
        """As the API server returns it."""
        metadata = {
            **self.manifest["metadata"],
            "uid": self.uid,
            "creationTimestamp": timestamp(self.created),
        }
        if self.deleting:
            metadata["deletionTimestamp"] = timestamp(self.created)
        status = {
            "jobDeploymentStatus": self.status,
            "jobStatus": self.job_status,
            "reason": self.reason,
        }
        if self.started is not None:
            status["startTime"] = timestamp(self.started)
        spec = {**self.spec, "suspend": self.suspended}
        return {"metadata": metadata, "spec": spec, "status": status}

    def state(self) -> Hashable:
        head = self.head and (
            self.head.session,
            tuple((name, job.status, job.ends) for name, job in sorted(self.head.jobs.items())),
        )
        spec = tuple(sorted((name, str(value)) for name, value in self.spec.items()))
        return (
            self.uid,
            self.status,
            self.job_status,
            self.started,
            self.ended,
            self.deleting,
            self.suspended,
            head,
            spec,
        )


class Kubernetes:
    """A namespace with KubeRay.

    :ivar away: whether KubeRay's operator is away.
    :ivar followed: whether a living process follows the job of this RayJob.
    """

    def __init__(self) -> None:
        self.now = START
        self.objects: dict[str, Object] = {}
        self.secrets: dict[str, str] = {}
        self.made = 0
        self.away = False
        self.followed: Callable[[str], bool] = lambda uid: False

    def state(self) -> Hashable:
        objects = tuple(one.state() for _, one in sorted(self.objects.items()))
        return (self.now, self.away, objects, tuple(sorted(self.secrets.items())))

    # KubeRay.

    def steps(self) -> list[tuple[Step, str]]:
        """Everything that KubeRay or Kubernetes would do now, by RayJob."""
        found = []
        for one in self.objects.values():
            if (step := self._next(one)) is not None and not (self.away and step is not self.drop_cluster):
                found.append(((step,), one.name))
        return found

    def _next(self, one: Object) -> Callable[[Object], None] | None:
        if one.deleting:
            if one.head is None:
                return self.drop
            return self.drop_cluster if self.now >= one.ended + GRACE else None
        if one.status in TERMINAL:
            return self.drop_cluster_later if one.head and self.now >= one.ended + TTL else None
        if one.status == "Suspended":
            return None
        if not one.status:
            return self.begin
        if one.suspended and one.status != "Waiting":  # KubeRay does not look at it there
            return self.suspend
        if self.now >= one.deadline():
            return self.pass_deadline
        if one.status == "Waiting":
            return self.run if one.spec.get("jobId") else None
        if one.head is None:
            return self.make_cluster
        if one.status == "Initializing":
            return self.wait if one.secret in self.secrets else None
        job = one.head.jobs.get(one.spec["jobId"])
        return self.complete if job is not None and job.status.is_terminal else None

    def begin(self, one: Object) -> None:
        one.status, one.started = "Initializing", self.now

    def make_cluster(self, one: Object) -> None:
        self.made += 1
        one.head = Head(self.made)

    def wait(self, one: Object) -> None:
        one.status = "Waiting"

    def run(self, one: Object) -> None:
        one.status = "Running"

    def complete(self, one: Object) -> None:
        assert one.head is not None
        one.job_status = one.head.jobs[one.spec["jobId"]].status.value
        one.status = "Failed" if one.job_status == "FAILED" else "Complete"
        one.ended = self.now

    def pass_deadline(self, one: Object) -> None:
        works = one.head is not None and any(not job.status.is_terminal for job in one.head.jobs.values())
        if works and self.followed(one.uid):
            raise Wrong(f"a deadline ends a healthy job that is followed: {one.name}, {one.status}")
        one.status, one.reason, one.ended = "Failed", "DeadlineExceeded", self.now

    def suspend(self, one: Object) -> None:
        one.status, one.job_status, one.head = "Suspended", "", None

    def drop_cluster(self, one: Object) -> None:
        one.head = None

    def drop_cluster_later(self, one: Object) -> None:
        one.head = None

    def drop(self, one: Object) -> None:
        del self.objects[one.name]
        self.secrets = {name: uid for name, uid in self.secrets.items() if uid != one.uid}

    # Time.

    def instants(self) -> Iterator[float]:
        """When something happens by itself."""
        for one in self.objects.values():
            if one.head is not None:
                yield from (job.ends for job in one.head.jobs.values() if not job.status.is_terminal)
            if one.deleting and one.head is not None:
                yield one.ended + GRACE
            if one.deleting or one.status in {"", "Suspended"} or self.away:
                continue
            if one.status in TERMINAL:
                yield from [one.ended + TTL] if one.head else []
            else:
                yield one.deadline()

    def pass_time(self, now: float) -> None:
        self.now = now
        for job in self.jobs():
            if job.ends <= now and not job.status.is_terminal:
                job.status = JobStatus.SUCCEEDED

    def be_alone(self, seconds: float) -> None:
        """Let all happen that happens in so many seconds without a follower."""
        self.away = False
        self.followed = lambda uid: False
        until = self.now + seconds
        while True:
            while found := self.steps():
                (step,), name = found[0]
                step(self.objects[name])
            later = [instant for instant in self.instants() if self.now < instant <= until]
            if not later:
                return
            self.pass_time(min(later))

    # Jobs.

    def jobs(self) -> list[Job]:
        heads = [one.head for one in self.objects.values() if one.head is not None]
        return [job for head in heads for job in head.jobs.values()]

    def reach(self, uid: str) -> Head:
        """The head behind a RayJob's address."""
        found = next((one for one in self.objects.values() if one.uid == uid), None)
        if found is None or found.head is None:
            raise ClusterUnreachableError("no such host")
        return found.head

    def info(self, uid: str, submission_id: str) -> JobInfo | None:
        job = self.reach(uid).jobs.get(submission_id)
        return None if job is None else JobInfo(submission_id, job.status, metadata=job.metadata)

    def submit(self, uid: str, request: JobRequest) -> None:
        head = self.reach(uid)
        if request.submission_id in head.jobs:
            raise JobExistsError("already exists")
        job = Job(dict(request.metadata), self.now + WORKS)
        if any(one.token == job.token and one.status is JobStatus.SUCCEEDED for one in self.jobs()):
            raise Wrong("a job starts though the result of its run is there")
        head.jobs[request.submission_id] = job

    def check(self) -> None:
        """Check what must hold at every instant."""
        works = [job.token for job in self.jobs() if not job.status.is_terminal]
        if len(works) > len(set(works)):
            raise Wrong("two jobs of one run work at once")

    # The API server.

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Secret":
            if name in self.secrets:
                raise ObjectExistsError(name)
            uid = manifest["metadata"]["ownerReferences"][0]["uid"]
            if any(one.uid == uid for one in self.objects.values()):  # else it is collected at once
                self.secrets[name] = uid
            return manifest
        if name in self.objects:
            raise ObjectExistsError(name)
        self.made += 1
        self.objects[name] = Object(manifest, f"uid-{self.made}", self.now)
        return self.objects[name].answer()

    def list(self, kind: str, selector: str) -> list[dict[str, Any]]:
        label, _, value = selector.partition("=")
        if kind == "RayCluster":
            assert label == OF_RAYJOB
            found = [one for one in self.objects.values() if one.head is not None and one.name == value]
            owners = [{"name": one.name, "ownerReferences": [{"uid": one.uid}]} for one in found]
            return [{"metadata": metadata} for metadata in owners]
        return [
            one.answer()
            for one in self.objects.values()
            if one.manifest["metadata"]["labels"].get(label) == value
        ]

    def get(self, name: str) -> dict[str, Any] | None:
        return self.objects[name].answer() if name in self.objects else None

    def patch(self, name: str, change: dict[str, Any]) -> dict[str, Any] | None:
        found = self._of(name, change["metadata"]["uid"])
        if found is None:
            return None
        for field_name, value in change["spec"].items():
            if isinstance(value, int) and value <= 0:
                raise Wrong(f"KubeRay finds {field_name} invalid, and keeps the cluster")
        found.manifest = {**found.manifest, "spec": {**found.spec, **change["spec"]}}
        return found.answer()

    def delete(self, name: str, uid: str | None) -> bool:
        found = self._of(name, uid)
        if found is None:
            return False
        if not found.deleting:
            found.deleting, found.ended = True, self.now
        if not found.status:  # KubeRay has not put its finalizer on it
            self.drop(found)
        return True

    def _of(self, name: str, uid: str | None) -> Object | None:
        found = self.objects.get(name)
        if found is not None and uid not in {None, found.uid}:
            raise ChangedObjectError(name)
        return found
