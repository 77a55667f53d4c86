# SPDX-License-Identifier: Apache-2.0
"""Exactly one cluster for a run, on the stand-in for a Kubernetes."""

from __future__ import annotations

from airflow_provider_raybatch.cluster.kuberay.claim import claim_cluster
from airflow_provider_raybatch.cluster.kuberay.names import rayjob_name

from .conftest import KEY, Kubernetes, plan


async def test_second_claim_adopts_the_first(kubernetes: Kubernetes) -> None:
    first = await claim_cluster(kubernetes.api, KEY, plan())
    again = await claim_cluster(kubernetes.api, KEY, plan())
    assert (first.adopted, again.adopted) == (False, True)
    assert first.claim == again.claim
    assert first.claim.name == rayjob_name(KEY, 0)
    assert kubernetes.names("RayJob") == [first.claim.name]
    assert kubernetes.names("Secret") == [first.claim.secret]
