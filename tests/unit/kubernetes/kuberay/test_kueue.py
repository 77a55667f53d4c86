# SPDX-License-Identifier: Apache-2.0
"""Clusters that wait in a queue of Kueue's."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.approved import AssertSentences
from tests.support.kubernetes.judged import judged
from tests.support.kubernetes.seen import (
    JOB,
    rayjob,
)

USER = FailureClass.USER_ERROR


QUEUE = {"kueue.x-k8s.io/queue-name": "gpus"}
NO_QUOTA = (
    "couldn't assign flavors to pod set head: insufficient unused quota for nvidia.com/gpu in flavor h100, "
    "4 more needed"
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


TOO_MUCH = (
    "couldn't assign flavors to pod set head: insufficient quota for nvidia.com/gpu in flavor h100, "
    "previously considered podsets requests (0) + current podset request (8) > maximum capacity (4)"
)


def test_why_kueue_does_not_admit(assert_sentences: AssertSentences) -> None:
    def told(*given: str) -> str:
        reason, message = given or ("", "")
        workloads = [workload(message, reason)] if given else None
        found = judged(job=suspended(), workloads=workloads, cluster=None)
        kind = f" [{found.failure_class.value}]" if found.failure_class else ""
        return f"{found.verdict}{kind}: {found.message or ' '.join(found.lines)}"

    assert_sentences(told, job=JOB)


def test_queue_without_kueue_says_what_to_look_at() -> None:
    found = judged(job=suspended(), workloads=[], cluster=None, after=90)
    assert found.state.latest.endswith("lists the integration ray.io/rayjob.")


def test_workload_that_says_nothing_yet() -> None:
    found = judged(job=suspended(), workloads=[{"status": {}}], cluster=None)
    assert found.lines == (f"RayJob {JOB}: waits for Kueue to admit it from the queue 'gpus'.",)
