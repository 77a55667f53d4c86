# SPDX-License-Identifier: Apache-2.0
"""The stand-in for a Kubernetes behind the provider's protocol, without HTTP: for unit tests.

::

    server = ApiServer(kuberay="1.7.0", clock=Clock(start=1_700_000_000))
    api = MemoryKubernetes(server)                       # everything is allowed
    api = MemoryKubernetes(server, user=server.access.grant("airflow", RULES, namespace="default"))
    server.faults.stage(verb="create", kind="RayJob", lost="after")

A test that plays KubeRay itself writes `status` by :func:`set_status`. Garbage is collected before each
request, so that what is deleted in the foreground is there in the answer to the delete, and gone in the next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError
from airflow_provider_raybatch.kubernetes.api import errors
from airflow_provider_raybatch.kubernetes.api.client import Kind, Manifest
from tests.support.kubernetes.access import User
from tests.support.kubernetes.faults import ConnectionLostError
from tests.support.kubernetes.garbage import collect_all
from tests.support.kubernetes.refusals import RefusedError
from tests.support.kubernetes.server import ApiServer

_PAGE = 2
"""Objects a page, so that every list of more has several."""


class MemoryKubernetes:
    """A `KubernetesClient` over a stand-in's objects.

    :param between: called before each request, for what happens in the meantime: a controller's step.
    """

    def __init__(
        self, server: ApiServer, *, namespace: str = "default", user: User | None = None,
        between: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self.namespace = namespace
        self._server = server
        self._user = user or server.admin
        self._between = between

    async def __aenter__(self) -> MemoryKubernetes:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    async def create(self, manifest: Mapping[str, Any]) -> Manifest:
        def ask() -> Manifest:
            kind = manifest["kind"]
            made, _ = self._server.create(self._user, kind, self.namespace, manifest, validation="Strict")
            return made

        return self._answer(ask, creating=True)

    async def get(self, kind: Kind, name: str) -> Manifest | None:
        return self._found(lambda: self._server.get(self._user, kind, self.namespace, name))

    async def list(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Manifest]:
        found: list[Manifest] = []
        after = ""
        while True:
            selection = {"labels": labels, "fields": fields, "limit": _PAGE, "after": after}
            page = self._answer(lambda s=selection: self._server.list(self._user, kind, self.namespace, **s))
            found += page["items"]
            after = page["metadata"].get("continue", "")
            if not after:
                return found

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest | None:
        def ask() -> Manifest:
            made, _ = self._server.patch(
                self._user, kind, self.namespace, name, json.loads(json.dumps(change)), validation="Strict"
            )
            return made

        return self._found(ask)

    async def delete(self, kind: Kind, name: str, *, uid: str | None = None) -> bool:
        def ask() -> Manifest:
            return self._server.delete(
                self._user, kind, self.namespace, name, uid=uid, propagation="Foreground"
            )

        return self._found(ask) is not None

    def now(self) -> float:
        return self._server.clock.now()

    def _found(self, ask: Callable[[], Manifest]) -> Manifest | None:
        try:
            return self._answer(ask)
        except _MissingError:
            return None

    def _answer(self, ask: Callable[[], Manifest], *, creating: bool = False) -> Manifest:
        collect_all(self._server.store)
        self._between()
        try:
            return ask()
        except ConnectionLostError:
            raise errors.KubernetesUnreachableError("Kubernetes' API server closed the connection") from None
        except RefusedError as refusal:
            raise _error(refusal, creating) from None


def set_status(
    server: ApiServer, kind: str, name: str, status: Mapping[str, Any], namespace: str = "default"
) -> None:
    """Merge into an object's `status`, as its controller does."""
    server.patch(server.admin, kind, namespace, name, {"status": dict(status)}, subresource="status")


class _MissingError(errors.NoSuchKindError):
    """404 for an object."""


def _error(refusal: RefusedError, creating: bool) -> ClusterError:
    causes = {cause["field"] for cause in refusal.details.get("causes", ())}
    match refusal.code:
        case 401:
            kind: type[ClusterError] = errors.KubernetesLoginError
        case 403:
            kind = errors.QuotaExceededError if "exceeded quota" in refusal.message else errors.ForbiddenError
        case 404:
            is_object = refusal.reason == "NotFound" and refusal.details.get("kind") != "namespaces"
            kind = _MissingError if is_object else errors.NoSuchKindError
        case 409:
            kind = errors.ObjectExistsError if creating else errors.ChangedObjectError
        case 422 if "metadata.uid" in causes:
            kind = errors.ChangedObjectError
        case 400 | 415 | 422:
            kind = errors.InvalidObjectError
        case _:
            kind = errors.KubernetesUnreachableError
    return kind(refusal.message.strip())
