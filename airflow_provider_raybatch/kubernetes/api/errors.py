# SPDX-License-Identifier: Apache-2.0
"""What a Kubernetes API server answers instead of a result; messages are one sentence and name no secret."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.errors import (
    ClusterError,
    ClusterUnreachableError,
    UserClusterError,
)
from airflow_provider_raybatch.cluster.jobs_api.transport import excerpt
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import cut_to

ROLE_FILE = "docs/kubernetes_role.yaml"

_LONGEST_MESSAGE = 500
_IDENTITY = frozenset({"metadata.uid", "metadata.resourceVersion"})


class KubernetesUnreachableError(ClusterUnreachableError):
    """No usable answer: no connection, a timeout, 429 or a 5xx. A retry may help."""


class KubernetesLoginError(UserClusterError):
    """401: credentials are missing, or have expired."""


class ForbiddenError(UserClusterError):
    """403 without a quota: the Role lacks a verb, or an admission webhook refuses the object."""


class QuotaExceededError(ClusterError):
    """403 with a quota: a retry may help, once other objects are gone."""

    failure_class = FailureClass.STALLED


class InvalidObjectError(UserClusterError):
    """400 or 422: the server refuses the object, or does not know one of its fields."""


class NoSuchKindError(UserClusterError):
    """404 for a kind or a namespace: KubeRay is not installed, or the namespace does not exist."""


class ObjectExistsError(ClusterError):
    """409 on create: another process made an object of this name."""


class ChangedObjectError(ClusterError):
    """409 on a patch or delete: the object is another one than the caller has seen, or has changed since."""


class ClusterOverError(ClusterError):
    """The only job of a cluster is over without a result, or lost: the run goes on with its next cluster."""

    failure_class = FailureClass.CLUSTER_LOST


@dataclass(frozen=True)
class ApiRequest:
    """One request, as messages name it.

    :param verb: as RBAC names it.
    :param name: of the object; empty for a list.
    """

    verb: str
    kind: str
    name: str
    namespace: str

    def __str__(self) -> str:
        what = f"{self.kind} {self.name!r}" if self.name else f"{self.kind}s"
        return f"{self.verb} {what} in namespace {self.namespace!r}"


@dataclass(frozen=True)
class ApiRefusal:
    """An answer other than success.

    :param status: Kubernetes' own ``Status``, empty where another server answers.
    :param text: of the body.
    """

    code: int
    status: Mapping[str, Any]
    text: str

    @classmethod
    def read(cls, code: int, body: bytes) -> ApiRefusal:
        """From an answer's body."""
        text = body.decode(errors="replace")
        try:
            status = json.loads(text)
        except ValueError:
            status = None
        return cls(code, status if isinstance(status, dict) and status.get("kind") == "Status" else {}, text)

    @property
    def details(self) -> Mapping[str, Any]:
        """Which object or field."""
        details = self.status.get("details")
        return details if isinstance(details, dict) else {}

    @property
    def message(self) -> str:
        """What the server says, in one line."""
        said = self.status.get("message")
        return cut_to(" ".join(str(said).split()) if said else excerpt(self.text), _LONGEST_MESSAGE)

    def no_such_object(self, request: ApiRequest) -> bool:
        """Whether the kind and the namespace are there, and this object alone is not."""
        return self.code == 404 and bool(request.name) and self.details.get("name") == request.name

    @property
    def is_conflict(self) -> bool:
        """Whether the object is another one than the patch or delete names."""
        about = {cause.get("field") for cause in self.details.get("causes") or []}
        return self.code == 409 or (self.code == 422 and bool(about & _IDENTITY))


def refusal_error(server: str, credentials: str, request: ApiRequest, refusal: ApiRefusal) -> ClusterError:
    """The error that `refusal` is.

    :param server: its address, as it may stand in a message.
    :param credentials: where they come from.
    """
    code, told = refusal.code, f"{refusal.code}: {refusal.message}"
    if code == 401:
        return KubernetesLoginError(
            f"The Kubernetes API server at {server} does not accept the credentials of {credentials} "
            f"({told}); they are wrong or have expired: log in again, or correct them."
        )
    if code == 403:
        return _forbidden(credentials, request, refusal.message)
    if code == 404:
        return NoSuchKindError(
            f"The Kubernetes at {server} can't {request} ({told}); create the namespace, install KubeRay 1.6 "
            f"or later, or correct the server's address in {credentials}."
        )
    if refusal.status.get("reason") == "AlreadyExists":
        return ObjectExistsError(f"Kubernetes refuses to {request} ({told}).")
    if refusal.is_conflict and (code == 409 or request.verb == "patch"):
        return ChangedObjectError(
            f"Kubernetes refuses to {request}, which is not the one that was seen, or has changed ({told})."
        )
    if code in {408, 410, 425, 429} or code >= 500:
        return KubernetesUnreachableError(
            f"The Kubernetes API server at {server} could not {request} ({told}); it may be overloaded, or "
            "one of its webhooks down."
        )
    if not refusal.status:
        return KubernetesUnreachableError(
            f"{server} does not answer as a Kubernetes API server does ({told}); correct the server's "
            f"address in {credentials}."
        )
    return InvalidObjectError(f"Kubernetes refuses to {request} ({told}); correct the field that it names.")


def _forbidden(credentials: str, request: ApiRequest, told: str) -> ClusterError:
    if "exceeded quota" in told or "failed quota" in told:
        return QuotaExceededError(
            f"Kubernetes has no quota left to {request} ({told}); wait until other objects are gone, or have "
            "the namespace's ResourceQuota raised."
        )
    return ForbiddenError(
        f"Kubernetes forbids {credentials} to {request} ({told}); bind it to the Role in {ROLE_FILE}, or "
        "correct what the message names."
    )
