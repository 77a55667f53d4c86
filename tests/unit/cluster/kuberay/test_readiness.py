# SPDX-License-Identifier: Apache-2.0
"""What is said of a cluster that is not ready, and what ends the wait at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.kuberay.pod_states import events_of, pod_of
from airflow_provider_raybatch.cluster.kuberay.readiness import (
    ClusterSeen,
    Readiness,
    WaitingState,
    judge_waiting,
    version_mismatch,
)
from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.kubernetes.seen import (
    CLUSTER,
    HEAD,
    IMAGE,
    JOB,
    NO_GPU,
    START,
    event,
    pod,
    rayjob,
    unschedulable,
)

USER = FailureClass.USER_ERROR
A_CLUSTER = {"metadata": {"name": CLUSTER}, "status": {"state": ""}}


def judged(
    *pods: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]] = (),
    job: Mapping[str, Any] | None = None,
    state: WaitingState | None = None,
    cluster: Mapping[str, Any] | None = A_CLUSTER,
    workloads: Sequence[Mapping[str, Any]] | None = None,
    after: float = 20.0,
) -> Readiness:
    seen = ClusterSeen(
        dict(job or rayjob()),
        dict(cluster) if cluster else None,
        [pod_of(one) for one in pods],
        events_of(events),
        None if workloads is None else [dict(one) for one in workloads],
        START + after,
    )
    return judge_waiting(seen, state or WaitingState())


@pytest.mark.parametrize("there", [(), (pod(node="n1", waiting=("ContainerCreating", "")),)])
def test_head_that_no_look_meets_is_known_by_its_event(there: Sequence[Mapping[str, Any]]) -> None:
    """KubeRay replaces a head that has ended within seconds, and each look may come in between."""
    said = (
        f"Deleted head Pod ml/{HEAD}; Pod status: Failed; Pod restart policy: Never; Ray container "
        "terminated status: &ContainerStateTerminated{ExitCode:127,Signal:0,Reason:Error,Message:,StartedAt:}"
    )
    head = {"template": {"spec": {"containers": [{"name": "ray-head", "image": IMAGE}]}}}
    found = judged(
        *there,
        events=[event("DeletedHeadPod", said, CLUSTER, "RayCluster")],
        cluster={**A_CLUSTER, "spec": {"headGroupSpec": head}},
    )
    assert (found.verdict, found.failure_class) == ("fails", USER)
    assert found.message == (
        f"head pod {HEAD}: has ended: container ray-head found no Ray (exit code 127); use an image that has "
        f"Ray; it is {IMAGE}."
    )
    lost = judged(*there, events=[event("DeletedHeadPod", said.replace("127", "137"), CLUSTER, "RayCluster")])
    assert lost.verdict == "waiting"


PULL_EVENT = event(
    "Failed",
    f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = failed to pull and unpack image '
    f'"{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found',
)
DENIED = (
    'failed to resolve reference "x": pull access denied, repository does not exist or may require '
    "authorization: server message: insufficient_scope: authorization failed"
)

WAITS = [
    (
        "no_gpu_node",
        unschedulable(NO_GPU),
        [],
        "waits for a node: of 5 nodes none fits: 1 has the taint "
        "node-role.kubernetes.io/control-plane, which "
        "the pod does not tolerate, 4 have too little nvidia.com/gpu free.",
    ),
    (
        "no_label",
        unschedulable("0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."),
        [],
        "3 have other labels than its node_selector asks for.",
    ),
    (
        "no_nodes",
        unschedulable("no nodes available to schedule pods"),
        [],
        "no nodes available to schedule pods.",
    ),
    (
        "cluster_autoscaler",
        unschedulable(NO_GPU),
        [
            event(
                "TriggeredScaleUp",
                "pod triggered scale-up: "
                "[{https://www.googleapis.com/compute/v1/projects/p/zones/z/instanceGroups/gke-h100 "
                "0->1 (max: 5)}]",
            )
        ],
        "; the cluster autoscaler adds nodes: gke-h100 0->1 (max: 5).",
    ),
    (
        "cluster_autoscaler_at_its_end",
        unschedulable(NO_GPU),
        [event("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 max node group size reached")],
        "; the cluster autoscaler adds no node for it: 2 max node group size reached.",
    ),
    (
        "no_capacity_in_the_cloud",
        unschedulable(NO_GPU),
        [
            event(
                "FailedScaleUp",
                "Node scale up in zones us-central1-c associated with this pod failed: GCE out of "
                "resources. Pod is "
                "at risk of not being scheduled.",
            )
        ],
        "; no node could be added: Node scale up in zones us-central1-c associated with this pod "
        "failed: GCE out of",
    ),
    (
        "karpenter",
        unschedulable(NO_GPU),
        [event("Nominated", "Pod should schedule on: nodeclaim/gpu-l4-x7k2q")],
        "; Karpenter adds a node: nodeclaim/gpu-l4-x7k2q.",
    ),
    (
        "karpenter_adds_none",
        unschedulable(NO_GPU),
        [
            event(
                "FailedScheduling",
                'Failed to schedule pod, incompatible with nodepool "default", no instance type',
            )
        ],
        '; Karpenter adds none: incompatible with nodepool "default", no instance type.',
    ),
    (
        "unbound_volume",
        unschedulable("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."),
        [],
        "waits for a volume: a PersistentVolumeClaim of it is not bound.",
    ),
    (
        "gated",
        pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
        [],
        "waits behind a scheduling gate",
    ),
    (
        "image_is_pulled",
        pod(node="n1", waiting=("ContainerCreating", "")),
        [event("Pulling", f'Pulling image "{IMAGE}"')],
        f"is on node n1, which pulls its image {IMAGE}.",
    ),
    (
        "first_pull_error",
        pod(node="n1", waiting=("ErrImagePull", DENIED)),
        [],
        f"can't pull its image {IMAGE}: ",
    ),
    (
        "rate_limit",
        pod(
            node="n1",
            waiting=("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: toomanyrequests'),
        ),
        [],
        "yet, and Kubernetes tries again: ",
    ),
    (
        "own_secret",
        pod(node="n1", waiting=("CreateContainerConfigError", f'secret "{JOB}-0a1b2c3d" not found')),
        [],
        f"waits for the Secret {JOB}-0a1b2c3d of its token.",
    ),
    (
        "volume_of_another_node",
        pod(node="n1", waiting=("ContainerCreating", "")),
        [
            event(
                "FailedAttachVolume",
                'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x',
            )
        ],
        "can't start: Multi-Attach error for volume",
    ),
    (
        "probe",
        pod(phase="Running", node="n1"),
        [event("Unhealthy", "Readiness probe failed: HTTP probe failed")],
        "runs, but does not answer yet: Readiness probe failed: HTTP probe failed.",
    ),
    ("starting", pod(phase="Running", node="n1"), [], "runs, and Ray starts on it."),
    (
        "evicted",
        pod(phase="Failed", node="n1", reason="Evicted", message="The node was low on resource: disk"),
        [],
        "has ended: Evicted: its node ran low (The node was low on resource: disk)",
    ),
]


@pytest.mark.parametrize(("name", "of", "events", "told"), WAITS, ids=[one[0] for one in WAITS])
def test_what_may_come_is_told_once(
    name: str, of: dict[str, Any], events: list[dict[str, Any]], told: str
) -> None:
    found = judged(of, events=events)
    assert found.verdict == "waiting"
    (line,) = found.lines
    assert line.startswith(f"head pod {HEAD}: ")
    assert told in line
    again = judged(of, events=events, state=found.state)
    assert again.lines == ()
    assert again.state.latest.startswith(line.rstrip("."))


FAILS = [
    (
        "image_back_off",
        pod(node="n1", waiting=("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')),
        [PULL_EVENT],
        USER,
        "not found; correct image.",
    ),
    (
        "denied",
        pod(node="n1", waiting=("ImagePullBackOff", f'Back-off pulling image "x": ErrImagePull: {DENIED}')),
        [],
        USER,
        "authorization failed; correct image, or name a Secret",
    ),
    (
        "platform",
        pod(node="n1", waiting=("ImagePullBackOff", "ErrImagePull: no match for platform in manifest")),
        [],
        USER,
        "; use an image for the architecture of the nodes.",
    ),
    (
        "image_name",
        pod(node="n1", waiting=("InvalidImageName", 'Failed to apply default image tag "x:"')),
        [],
        USER,
        "is refused (InvalidImageName: Failed to apply default image tag",
    ),
    (
        "image_without_ray",
        pod(
            phase="Running",
            node="n1",
            waiting=("CrashLoopBackOff", "back-off 10s restarting failed container"),
            last={"exitCode": 127, "reason": "Error", "message": "/bin/bash: line 1: ray: command not found"},
        ),
        [],
        USER,
        f"ray: command not found); use an image that has Ray; it is {IMAGE}.",
    ),
    (
        "image_without_bash",
        pod(
            node="n1",
            waiting=("RunContainerError", 'exec: "/bin/bash": stat /bin/bash: no such file or directory'),
        ),
        [],
        USER,
        "no such file or directory; use an image that has Ray and bash.",
    ),
    (
        "image_without_bash_ended",
        pod(
            node="n1",
            phase="Failed",
            ended={"exitCode": 128, "reason": "StartError", "message": 'exec: "/bin/bash"'},
        ),
        [],
        USER,
        "; use an image that has Ray and bash.",
    ),
    (
        "image_without_ray_ended",
        pod(node="n1", phase="Failed", ended={"exitCode": 127, "reason": "Error"}),
        [],
        USER,
        "has ended: container ray-head found no Ray (exit code 127); use an image that has Ray",
    ),
    (
        "head_out_of_memory",
        pod(node="n1", phase="Failed", ended={"exitCode": 137, "reason": "OOMKilled"}),
        [],
        FailureClass.OUT_OF_MEMORY,
        "OOMKilled: container ray-head exceeded its memory limit of 8Gi; give it more",
    ),
    (
        "other_secret",
        pod(node="n1", waiting=("CreateContainerConfigError", 'secret "hf" not found')),
        [],
        USER,
        'can\'t start: secret "hf" not found; create what is missing',
    ),
    (
        "config_map_volume",
        pod(node="n1", waiting=("ContainerCreating", "")),
        [event("FailedMount", 'MountVolume.SetUp failed for volume "v" : configmap "cfg" not found')],
        USER,
        'configmap "cfg" not found; correct volumes.',
    ),
    (
        "no_claim",
        unschedulable('persistentvolumeclaim "models" not found'),
        [],
        USER,
        "the PersistentVolumeClaim 'models' does not exist; create it, or correct volumes.",
    ),
]


@pytest.mark.parametrize(
    ("name", "of", "events", "failure_class", "told"), FAILS, ids=[one[0] for one in FAILS]
)
def test_what_cannot_come_fails_at_once(
    name: str, of: dict[str, Any], events: list[dict[str, Any]], failure_class: FailureClass, told: str
) -> None:
    found = judged(of, events=events)
    assert (found.verdict, found.failure_class) == ("fails", failure_class)
    assert told in found.message
    assert found.message.startswith(f"head pod {HEAD}: ")
    assert found.message.endswith(".")


def refused(message: str, reason: str = "FailedCreateHeadPod") -> dict[str, Any]:
    condition = {"type": "ReplicaFailure", "status": "True", "reason": reason, "message": message}
    return {"metadata": {"name": CLUSTER}, "status": {"conditions": [condition]}}


FORBIDDEN = 'pods "x" is forbidden: '
REFUSALS = [
    (
        "account",
        FORBIDDEN + 'error looking up service account ml/gpu: serviceaccount "gpu" not found',
        "fails",
        "the service account 'gpu' does not exist; create it, or correct service_account.",
    ),
    (
        "webhook",
        'admission webhook "validate.kyverno.svc-fail" denied the request: use an approved registry',
        "fails",
        "the admission webhook 'validate.kyverno.svc-fail' denies it: use an approved registry; "
        "correct ray_cluster",
    ),
    (
        "security",
        FORBIDDEN + 'violates PodSecurity "restricted:latest": runAsNonRoot != true',
        "fails",
        'violates PodSecurity "restricted:latest": runAsNonRoot != true; correct ray_cluster',
    ),
    (
        "quota",
        FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: 8, limited: 8",
        "waiting",
        "a ResourceQuota of the namespace has no room (exceeded quota: gpus, requested: "
        "requests.nvidia.com/gpu=1",
    ),
    (
        "webhook_down",
        'Internal error occurred: failed calling webhook "x": connection refused',
        "waiting",
        "and tries again",
    ),
]


@pytest.mark.parametrize(("name", "message", "verdict", "told"), REFUSALS, ids=[one[0] for one in REFUSALS])
def test_pod_that_is_refused(name: str, message: str, verdict: str, told: str) -> None:
    found = judged(cluster=refused(message))
    assert found.verdict == verdict
    assert told in (found.message or found.lines[0])
    seen = event("FailedToCreateHeadPod", f"Failed to create head Pod ml/x, {message}", CLUSTER, "RayCluster")
    found = judged(events=[seen])
    assert found.verdict == verdict
    assert told in (found.message or found.lines[0])


def test_worker_that_a_quota_forbids_is_told_while_the_job_runs() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    said = (
        "FailedCreateWorkerPod\n" + FORBIDDEN + "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"
    )
    found = judged(head, job=rayjob("Running"), cluster=refused(said, "FailedCreateWorkerPod"))
    assert found.verdict == "ready"
    assert found.lines[0] == (
        f"RayCluster {CLUSTER}: KubeRay can't create a worker pod: a ResourceQuota of the namespace "
        f"has no room "
        "(exceeded quota: gpus, requested: requests.nvidia.com/gpu=1)."
    )


def test_pod_that_can_not_be_deleted_is_no_reason_to_wait() -> None:
    found = judged(
        pod(phase="Running", node="n1"), cluster=refused("x is forbidden", "FailedDeleteWorkerPod")
    )
    assert [line.partition(": ")[2] for line in found.lines] == ["runs, and Ray starts on it."]


def test_pod_that_was_refused_and_is_there_now() -> None:
    events = [
        event(
            "FailedToCreateHeadPod", "Failed to create head Pod: is forbidden", CLUSTER, "RayCluster", at=1
        ),
        event("CreatedHeadPod", "Created head Pod", CLUSTER, "RayCluster", at=2),
    ]
    assert judged(unschedulable(NO_GPU), events=events).verdict == "waiting"


QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
NO_QUOTA = (
    "couldn't assign flavors to pod set head: insufficient unused quota for nvidia.com/gpu in flavor "
    "h100, 4 more "
    "needed"
)


def workload(message: str, reason: str = "Pending") -> dict[str, Any]:
    return {
        "status": {
            "conditions": [
                {"type": "QuotaReserved", "status": "False", "reason": reason, "message": message},
            ]
        }
    }


def suspended() -> dict[str, Any]:
    return rayjob("Suspended", labels=QUEUE, spec={"suspend": True})


def test_queue_without_quota() -> None:
    found = judged(job=suspended(), workloads=[workload(NO_QUOTA)], cluster=None)
    assert found.verdict == "waiting"
    assert found.lines == (f"RayJob {JOB}: waits for Kueue to admit it from the queue 'gpus': {NO_QUOTA}.",)


@pytest.mark.parametrize(
    "reason",
    ["Pending", "WaitingForQuota", "WaitingForPreemptedWorkloads", "TopologyPlacementFailed"],
)
def test_queue_without_quota_by_events_alone(reason: str) -> None:
    found = judged(job=suspended(), events=[event(reason, NO_QUOTA, "w", "Workload")], cluster=None)
    assert found.lines == (
        f"RayJob {JOB}: waits for Kueue to admit it from the queue 'gpus': {NO_QUOTA}.",
        f"RayJob {JOB}: its Workload can't be read, so events say why; see docs/kubernetes_role.yaml.",
    )


TOO_MUCH = (
    "couldn't assign flavors to pod set head: insufficient quota for nvidia.com/gpu in flavor h100, "
    "previously considered podsets requests (0) + current podset request (8) > maximum capacity (4)"
)


@pytest.mark.parametrize(
    ("reason", "said", "verdict"),
    [
        ("Pending", TOO_MUCH, "fails"),
        ("ExceedsMaxQuota", NO_QUOTA, "fails"),
        ("NoMatchingFlavor", "flavor h100 doesn't match node affinity", "fails"),
        ("Pending", f"{TOO_MUCH}, {NO_QUOTA}", "waiting"),
    ],
)
@pytest.mark.parametrize("readable", [True, False])
def test_what_never_fits_the_quota_fails_at_once(
    reason: str, said: str, verdict: str, readable: bool
) -> None:
    found = judged(
        job=suspended(),
        workloads=[workload(said, reason)] if readable else None,
        events=[event(reason, said, "w", "Workload")],
        cluster=None,
    )
    assert found.verdict == verdict
    if verdict == "fails":
        assert found.failure_class is USER
        assert found.message == (
            f"RayJob {JOB}: can never be admitted by Kueue from the queue 'gpus': {said}; ask for less, or "
            "have the queue's quota raised."
        )


@pytest.mark.parametrize("reason", ["Inadmissible", "Misconfigured"])
def test_queue_that_does_not_exist(reason: str) -> None:
    found = judged(
        job=suspended(), workloads=[workload("LocalQueue gpus doesn't exist", reason)], cluster=None
    )
    assert (found.verdict, found.failure_class) == ("fails", USER)
    assert found.message == (
        f"RayJob {JOB}: can't be admitted by Kueue: LocalQueue gpus doesn't exist; correct "
        f"kueue_queue, or create "
        "the queue in the namespace."
    )


def test_queue_without_kueue() -> None:
    found = judged(job=suspended(), cluster=None, after=90)
    assert "and Kueue has not taken it up." in found.lines[0]
    assert found.state.latest.endswith("lists the integration ray.io/rayjob.")


def test_rayjob_that_kuberay_refuses() -> None:
    job = rayjob(
        "ValidationFailed", reason="ValidationFailed", message="headGroupSpec should have a container"
    )
    found = judged(job=job)
    assert (found.verdict, found.failure_class) == ("fails", USER)
    assert found.message == (
        f"KubeRay refuses the RayJob {JOB}: headGroupSpec should have a container; correct ray_cluster."
    )


@pytest.mark.parametrize(
    ("reason", "failure_class", "why"),
    [
        ("PreRunningDeadlineExceeded", FailureClass.STALLED, ""),
        (
            "DeadlineExceeded",
            FailureClass.TIMEOUT,
            "; the task's deadline has passed, or no task had followed the job for long",
        ),
        ("AppFailed", FailureClass.INTERNAL, ""),
    ],
)
def test_rayjob_that_kuberay_ended(reason: str, failure_class: FailureClass, why: str) -> None:
    found = judged(job=rayjob("Failed", reason=reason, message="Ray head pod not found."))
    assert (found.verdict, found.failure_class) == ("fails", failure_class)
    assert found.message == f"KubeRay ended the RayJob {JOB} ({reason}): Ray head pod not found{why}."


def test_rayjob_that_was_deleted() -> None:
    found = judge_waiting(ClusterSeen(None), WaitingState())
    assert (found.verdict, found.failure_class) == ("fails", FailureClass.CANCELLED)
    job = rayjob()
    job["metadata"]["deletionTimestamp"] = job["metadata"]["creationTimestamp"]
    assert judged(job=job).failure_class is FailureClass.CANCELLED


def test_cluster_that_was_deleted_before_its_job_came() -> None:
    found = judged(job=rayjob("Waiting"), cluster=None)
    assert (found.verdict, found.failure_class) == ("fails", FailureClass.CLUSTER_LOST)
    assert found.message == (
        f"RayCluster {CLUSTER} was deleted before its job was there; a retry makes another."
    )


def test_cluster_that_kuberay_makes_again_is_waited_for() -> None:
    assert judged(job=rayjob("Initializing"), cluster=None).verdict == "waiting"


def test_kuberay_that_does_not_run() -> None:
    early = judged(job=rayjob(""), cluster=None, after=5)
    assert early.lines == (f"RayJob {JOB}: waits for KubeRay to create its cluster.",)
    late = judged(job=rayjob(""), cluster=None, after=40, state=early.state)
    assert late.lines == (f"RayJob {JOB}: KubeRay has not taken it up.",)
    assert late.state.latest.endswith("; look whether KubeRay's operator runs, and watches this namespace.")


def test_ready_cluster_says_so_and_tells_of_waiting_workers() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    workers = [unschedulable(NO_GPU, f"worker-{number}", group="gpu") for number in range(3)]
    found = judged(head, *workers, job=rayjob("Waiting"))
    assert found.verdict == "ready"
    assert found.lines[0] == f"head pod {HEAD}: is ready."
    assert found.lines[1].startswith("3 worker pods of group gpu: waits for a node: of 5 nodes none fits")
    assert len(found.lines) == 2


def test_dead_worker_does_not_end_a_ready_cluster() -> None:
    head = pod(phase="Running", node="n1", ready=True)
    dead = pod("w", group="gpu", phase="Failed", node="n2", ended={"exitCode": 137, "reason": "OOMKilled"})
    assert judged(head, dead, job=rayjob("Running")).verdict == "ready"


def test_head_that_ends_again_and_again() -> None:
    state = WaitingState()
    for number in range(3):
        dead = pod(f"head-{number}", phase="Failed", node="n1", ended={"exitCode": 1, "reason": "Error"})
        found = judged(dead, state=state)
        state = found.state
    assert (found.verdict, found.failure_class) == ("fails", FailureClass.INTERNAL)
    assert found.message == (
        "The cluster's head does not start: 3 head pods ended, and then head pod head-2: has ended: Error: "
        "container ray-head ended with exit code 1."
    )


REFUSED = ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 2000, used: 0, capacity: 1000")


@pytest.mark.parametrize(
    ("status", "of_pod", "failure_class", "why"),
    [
        ("&ContainerStateTerminated{ExitCode:1,Signal:0,Reason:Error,Message:,StartedAt:}", None,
         FailureClass.INTERNAL, "Error: container ray-head ended with exit code 1."),
        ("nil", REFUSED, FailureClass.NODE_LOST,
         f"OutOfcpu: its node has too little left for it ({REFUSED[1]})."),
        ("nil", None, FailureClass.NODE_LOST, "Failed: ended without its container, as by its node."),
    ],
)  # fmt: skip
def test_heads_that_each_look_finds_replaced(
    status: str, of_pod: tuple[str, str] | None, failure_class: FailureClass, why: str
) -> None:
    """KubeRay makes the next head within a second, with the name of the last one."""
    said = f"Deleted head Pod ml/{HEAD}; Pod status: Failed; Pod restart policy: Never; Ray container "
    events, state = [], WaitingState()
    for number in range(4):
        young = pod(node="n1", waiting=("ContainerCreating", ""))
        young["metadata"]["uid"] = f"uid-{number}"
        found = judged(young, events=events, state=state)
        state = found.state
        events += [event(*of_pod, at=number)] if of_pod else []
        told = f"{said}terminated status: {status}"
        events += [event("DeletedHeadPod", told, CLUSTER, "RayCluster", at=number + 0.5)]
        assert (found.verdict == "fails") is (number == 3)
    assert found.failure_class is failure_class
    assert found.message == (
        f"The cluster's head does not start: 3 head pods ended, and then head pod {HEAD}: has ended: {why}"
    )


def test_escape_sequences_of_a_cluster_are_removed() -> None:
    found = judged(unschedulable("no \x1b[31mnodes\x00\nat all ::group::x"))
    assert found.lines[0].endswith("waits for a node: no nodes\ufffd at all : :group::x.")


def test_number_of_lines_is_bounded() -> None:
    state = WaitingState()
    for number in range(300):
        state = judged(unschedulable(f"no nodes {number}"), state=state).state
    assert len(state.told) == 200


@pytest.mark.parametrize(
    ("declared", "answered"),
    [("2.56.0", "2.56.0"), ("2.56", "2.56.1"), (None, "2.56.0")],
)
def test_ray_version_fits(declared: str | None, answered: str) -> None:
    assert version_mismatch(declared, answered) is None


def test_ray_version_of_another_image() -> None:
    assert version_mismatch("2.56.0", "2.55.1", IMAGE) == (
        f"ray_version: it is '2.56.0', but image {IMAGE} has Ray 2.55.1; set it to the image's version."
    )
