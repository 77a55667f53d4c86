# SPDX-License-Identifier: Apache-2.0
"""Clusters that wait in a queue of Kueue's."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.kubernetes.judged import judged
from tests.support.kubernetes.seen import (
    JOB,
    event,
    rayjob,
)

USER = FailureClass.USER_ERROR


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
