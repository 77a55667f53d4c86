# SPDX-License-Identifier: Apache-2.0
"""Answers of a Kubernetes API server whose proxy leads to a dashboard, told apart from Ray's own ones."""

from __future__ import annotations

import httpx

from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AuthenticationError,
    ClusterError,
    ClusterUnreachableError,
    NotARayDashboardError,
    PackageTooLargeError,
    RequestRejectedError,
)
from airflow_provider_raybatch.contract.text import cut_to

_LONGEST_MESSAGE = 500


def refused_before_ray(shown: str, response: httpx.Response) -> ClusterError | None:
    """What the API server's refusal means; ``None`` if the answer comes from what lies behind it.

    :param shown: the dashboard's url, without secrets.
    """
    told = _status_message(response)
    if told is None:
        return None
    code = response.status_code
    if code == 401:
        return AuthenticationError(
            f"The Kubernetes API server on the way to {shown} does not accept the credentials (401: {told}); "
            "they are wrong or have expired: log in again, or correct kubernetes_conn_id's connection."
        )
    if code == 403:
        return AuthenticationError(
            f"The Kubernetes API server on the way to {shown} refuses the use of its proxy (403: {told}); "
            "allow get, create and update of services/proxy, as in docs/kubernetes_role.yaml, or set "
            "dashboard_address."
        )
    if code == 404:
        return NotARayDashboardError(
            f"Kubernetes has no service of the Ray cluster at {shown} (404: {told}); the cluster is gone, or "
            "has another name."
        )
    if code == 413:
        return PackageTooLargeError(
            f"The Kubernetes API server on the way to {shown} does not accept a body of this size (413: "
            f"{told}); make the package smaller, or set dashboard_address to a way around its proxy."
        )
    if code in {408, 429} or code >= 500:
        return ClusterUnreachableError(
            f"Kubernetes reaches no Ray dashboard at {shown} ({code}: {told}); the head may be starting or "
            "gone."
        )
    return RequestRejectedError(f"The Kubernetes API server on the way to {shown} refused ({code}: {told}).")


def _status_message(response: httpx.Response) -> str | None:
    """The message of Kubernetes' ``Status``; ``None`` if the body is something else."""
    try:
        status = response.json()
    except ValueError:
        return None
    if not isinstance(status, dict) or status.get("kind") != "Status" or status.get("apiVersion") != "v1":
        return None
    told = status.get("message") or status.get("reason") or "no text"
    return cut_to(_LONGEST_MESSAGE, " ".join(str(told).split()))
