# SPDX-License-Identifier: Apache-2.0
"""What the stand-in for KubeRay asks a head's Jobs API."""

from __future__ import annotations

import base64
import http.client
import json
from contextlib import suppress

from tests.support.kubernetes.kinds import Manifest
from tests.support.kubernetes.server import ApiServer

_SECONDS = 5.0
"""KubeRay waits for 2 s in a cluster; heads on this machine may be slower."""


class JobUnknownError(Exception):
    """The head answers that there is no such job."""


class HeadSilentError(Exception):
    """The head gives no usable answer."""


def job_details(server: ApiServer, job: Manifest) -> Manifest:
    """The Ray job of a RayJob, as the Jobs API describes it."""
    code, text = _ask(server, job, "GET", f"/api/jobs/{job['status']['jobId']}")
    if code == 404:
        raise JobUnknownError
    if code != 200:
        raise HeadSilentError
    try:
        details: Manifest = json.loads(text)
    except ValueError as error:
        raise HeadSilentError from error
    return details


def stop_job(server: ApiServer, job: Manifest) -> None:
    """Ask to stop the Ray job of a RayJob; what comes of it is not asked."""
    with suppress(HeadSilentError):
        _ask(server, job, "POST", f"/api/jobs/{job['status']['jobId']}/stop")


def token_of(server: ApiServer, namespace: str, cluster_spec: Manifest) -> str | None:
    """The token in the Secret that a cluster names; ``None``: there is none."""
    options = cluster_spec.get("authOptions") or {}
    if options.get("mode") != "token":
        return None
    secret = server.store.find("Secret", namespace, options.get("secretName") or "")
    encoded = (secret or {}).get("data", {}).get("auth_token")
    return base64.b64decode(encoded).decode() if encoded else None


def _ask(server: ApiServer, job: Manifest, method: str, path: str) -> tuple[int, bytes]:
    namespace = job["metadata"]["namespace"]
    service = job["status"].get("dashboardURL", "").partition(".")[0]
    address = server.endpoints.get((namespace, service, "dashboard"))
    if address is None:
        raise HeadSilentError
    token = token_of(server, namespace, job["spec"].get("rayClusterSpec") or {})
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connection = http.client.HTTPConnection(address, timeout=_SECONDS)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise HeadSilentError from error
    finally:
        connection.close()
