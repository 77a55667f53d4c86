# SPDX-License-Identifier: Apache-2.0
"""Why a cluster gives no answer: its RayJob's end, and the end of its head's pod."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_raybatch.cluster.follow.failure_reason import Diagnosis
from airflow_provider_raybatch.cluster.kuberay.rayjob import ClusterClaim, rayjob_state
from airflow_provider_raybatch.cluster.kuberay.silence import cause_of_silence, why_silent
from airflow_provider_raybatch.contract.failures import FailureClass
from tests.support.kubernetes.memory import MemoryKubernetes
from tests.support.kubernetes.seen import JOB, rayjob
from tests.support.kubernetes.server import ApiServer

OF_PODS = Diagnosis(FailureClass.OUT_OF_MEMORY, "The cluster's head pod x has ended: OOMKilled.")


@pytest.mark.parametrize(
    ("status", "reason", "of_pods", "failure_class"),
    [
        ("Running", "", None, None),
        ("Running", "", OF_PODS, FailureClass.OUT_OF_MEMORY),
        ("Complete", "", OF_PODS, None),
        ("Failed", "AppFailed", OF_PODS, FailureClass.OUT_OF_MEMORY),
        ("Failed", "AppFailed", None, FailureClass.INTERNAL),
        ("Failed", "JobStatusCheckTimeoutExceeded", None, FailureClass.CLUSTER_UNREACHABLE),
        ("Failed", "DeadlineExceeded", OF_PODS, FailureClass.TIMEOUT),
        ("Suspended", "", None, FailureClass.NODE_LOST),
    ],
)
def test_cause(
    status: str, reason: str, of_pods: Diagnosis | None, failure_class: FailureClass | None
) -> None:
    cause = cause_of_silence(rayjob_state(rayjob(status, reason=reason)), of_pods)
    assert (cause and cause.failure_class) is failure_class


def test_cause_of_a_deleted_rayjob() -> None:
    job = rayjob("Running")
    job["metadata"]["deletionTimestamp"] = job["metadata"]["creationTimestamp"]
    cause = cause_of_silence(rayjob_state(job), OF_PODS)
    assert cause is not None
    assert cause.failure_class is FailureClass.CANCELLED


def test_rayjob_that_is_gone() -> None:
    api = MemoryKubernetes(ApiServer(kuberay="1.7.0"))
    found = asyncio.run(why_silent(api, ClusterClaim("default", JOB, "uid", 0, "secret")))
    assert found.cause is not None
    assert found.cause.message == (
        f"The RayJob {JOB} was deleted, and its cluster with it; a retry makes another one."
    )
