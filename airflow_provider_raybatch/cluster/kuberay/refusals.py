# SPDX-License-Identifier: Apache-2.0
"""What an answer other than success of a Kubernetes API server means: one sentence each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.cluster.jobs_api.transport import excerpt
from airflow_provider_raybatch.cluster.kuberay.errors import (
    ChangedObjectError,
    ForbiddenError,
    InvalidObjectError,
    KubernetesLoginError,
    KubernetesUnreachableError,
    NoSuchKindError,
    ObjectExistsError,
    QuotaExceededError,
)
from airflow_provider_raybatch.cluster.kuberay.role import ROLE_FILE
from airflow_provider_raybatch.cluster.kuberay.server import ApiServer
from airflow_provider_raybatch.contract.text import cut_to

_LONGEST_MESSAGE = 500
_IDENTITY = frozenset({"metadata.uid", "metadata.resourceVersion"})


@dataclass(frozen=True)
class Asked:
    """One request.

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
        return cut_to(_LONGEST_MESSAGE, " ".join(str(said).split()) if said else excerpt(self.text))

    def no_such_object(self, asked: Asked) -> bool:
        """Whether the kind and the namespace are there, and this object alone is not."""
        return self.code == 404 and bool(asked.name) and self.details.get("name") == asked.name


def refusal_error(server: ApiServer, asked: Asked, refusal: ApiRefusal) -> ClusterError:
    """The error that `refusal` is."""
    code, told = refusal.code, refusal.message
    if code == 401:
        return KubernetesLoginError(
            f"The Kubernetes API server at {server.shown} does not accept the credentials of "
            f"{server.credentials} (401: {told}); they are wrong or have expired: log in again, or correct "
            "them."
        )
    if code == 403:
        return _forbidden(server, asked, refusal)
    if code == 404:
        return _missing(server, asked, refusal)
    if code == 409:
        if refusal.status.get("reason") == "AlreadyExists":
            return ObjectExistsError(
                f"There is a {asked.kind} {asked.name!r} in namespace {asked.namespace!r} already."
            )
        return _conflict(asked, told)
    about = {cause.get("field") for cause in refusal.details.get("causes") or []}
    if code == 422 and asked.verb == "patch" and about & _IDENTITY:
        return _conflict(asked, told)
    if code in {408, 410, 425, 429} or code >= 500:
        return KubernetesUnreachableError(
            f"The Kubernetes API server at {server.shown} could not {asked} ({code}: {told}); it may be "
            "overloaded, or one of its webhooks down."
        )
    if not refusal.status:
        return KubernetesUnreachableError(
            f"{server.shown} does not answer as a Kubernetes API server does ({code}: {told}); correct the "
            f"server's address in {server.credentials}."
        )
    return InvalidObjectError(
        f"Kubernetes refuses to {asked} ({code}: {told}); correct the field that it names."
    )


def _forbidden(server: ApiServer, asked: Asked, refusal: ApiRefusal) -> ClusterError:
    told = refusal.message
    if "exceeded quota" in told or "failed quota" in told:
        return QuotaExceededError(
            f"Kubernetes has no quota left to {asked} ({told}); wait until other objects are gone, or have "
            "the namespace's ResourceQuota raised."
        )
    if "denied the request" in told:
        return ForbiddenError(
            f"Kubernetes forbids to {asked} ({told}); correct what the admission webhook names, or have its "
            "policy changed."
        )
    return ForbiddenError(
        f"{server.credentials[:1].upper()}{server.credentials[1:]} may not {asked} ({told}); bind it to the "
        f"Role in {ROLE_FILE}, or correct what the message names."
    )


def _missing(server: ApiServer, asked: Asked, refusal: ApiRefusal) -> ClusterError:
    told = refusal.message
    if refusal.details.get("kind") == "namespaces" or "namespaces " in told:
        return NoSuchKindError(
            f"namespace: there is no {asked.namespace!r} on the Kubernetes at {server.shown}; create it, or "
            "name another one."
        )
    return NoSuchKindError(
        f"The Kubernetes at {server.shown} has no {asked.kind} of this version ({told}); install KubeRay 1.6 "
        f"or later, or correct the server's address in {server.credentials}."
    )


def _conflict(asked: Asked, told: str) -> ClusterError:
    return ChangedObjectError(
        f"{asked.kind} {asked.name!r} in namespace {asked.namespace!r} is not the one that was seen, or has "
        f"changed since ({told})."
    )
