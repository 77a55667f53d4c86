# SPDX-License-Identifier: Apache-2.0
"""The provider's own client, with the documented Role, brings a job through a cluster of the stand-in."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.kubernetes.api.client import KubernetesClient
from airflow_provider_raybatch.kubernetes.api.errors import ForbiddenError
from airflow_provider_raybatch.kubernetes.api.kubeconfig import Kubeconfig, kubeconfig_server
from airflow_provider_raybatch.kubernetes.kuberay.reach import cluster_address
from tests.support.kubernetes.place import KUBECONFIG, kubernetes_place


def rayjob() -> dict[str, Any]:
    ports = [{"name": "dashboard", "containerPort": 8265}]
    container = {"name": "ray", "image": "ray", "ports": ports}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    auth = {"mode": "token", "secretName": "token"}
    cluster = {"rayVersion": "2.60.0", "authOptions": auth, "headGroupSpec": head}
    spec = {"submissionMode": "InteractiveMode", "shutdownAfterJobFinishes": True, "rayClusterSpec": cluster}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "job"}, "spec": spec}


def secret(owner: dict[str, Any]) -> dict[str, Any]:
    ref = {"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "job", "uid": owner["metadata"]["uid"]}
    data = {"auth_token": base64.b64encode(b"ray").decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "token", "ownerReferences": [ref]},
        "data": data,
    }


async def reaching(api: KubernetesClient, state: str | None) -> dict[str, Any]:
    """Wait until the RayJob is in a state; ``None``: until it is gone."""
    async with asyncio.timeout(30):
        while True:
            found = await api.get("RayJob", "job") or {}
            if found.get("status", {}).get("jobDeploymentStatus") == state:
                return found
            await asyncio.sleep(0.02)


async def test_a_job_from_claim_to_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KUBECONFIG, raising=False)
    with kubernetes_place(tmp_path) as place:
        server = kubeconfig_server(Kubeconfig(str(place.kubeconfig)))
        async with KubernetesClient(server) as api:
            await api.create(secret(await api.create(rayjob())))
            found = await reaching(api, "Waiting")
            [cluster] = await api.list("RayCluster")
            address = cluster_address(server, cluster, "ray")
            async with RayJobsClient(address) as jobs:
                version = await jobs.version()
            with pytest.raises(ForbiddenError):
                await api.get("Secret", "token")
            await api.delete("RayJob", "job", uid=found["metadata"]["uid"])
            await reaching(api, None)
        place.stand_in.settle()
        kinds = {each["kind"] for each in place.stand_in.store.all()}
    assert version.ray_version == "2.60.0"
    assert kinds == {"Namespace", "Event"}
