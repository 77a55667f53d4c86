# SPDX-License-Identifier: Apache-2.0
"""The real :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Self
from urllib.parse import quote

from airflow_provider_raybatch.cluster.jobs_api.access import tls_version
from airflow_provider_raybatch.cluster.jobs_api.sharing import shared
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.cluster.kuberay.api import Kind, Manifest
from airflow_provider_raybatch.cluster.kuberay.refusals import Asked, refusal_error
from airflow_provider_raybatch.cluster.kuberay.server import ApiServer
from airflow_provider_raybatch.cluster.kuberay.session import RETRIES, Call, RefusedRequestError, Session

_OLDER, _NEWER = "v1beta1", "v1beta2"
"""Versions of Kueue's API: servers have the first, the second, or both."""
_CORE, _RAY = "/api/v1", "/apis/ray.io/v1"
_RESOURCES: dict[str, tuple[str, str]] = {
    "RayJob": (_RAY, "rayjobs"),
    "RayCluster": (_RAY, "rayclusters"),
    "Secret": (_CORE, "secrets"),
    "Pod": (_CORE, "pods"),
    "Event": (_CORE, "events"),
    "Service": (_CORE, "services"),
    "Workload": (f"/apis/kueue.x-k8s.io/{_OLDER}", "workloads"),
}
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_STRICT = {"fieldValidation": "Strict"}
_PAGE = 250


class KubernetesClient:
    """A namespace of an API server; all clients of one server and event loop share its connections.

    Reads and deletes with a `uid` are repeated for some seconds while the server gives no answer, is
    overloaded (429) or fails (5xx). What would do harm twice is repeated only if the server can't have begun
    it.

    :param namespace: ``None`` for the server's default one.
    :param request_timeout: seconds that one request may take.
    """

    def __init__(
        self,
        server: ApiServer,
        namespace: str | None = None,
        *,
        retries: RetryPolicy = RETRIES,
        request_timeout: float = 30.0,
    ) -> None:
        self.server = server
        self.namespace = namespace or server.namespace
        self._retries = retries
        self._request_timeout = request_timeout

    async def __aenter__(self) -> Self:
        server = self.server
        files = await tls_version(server.verify, server.access.certificate)
        key = (
            "kubernetes",
            server.url,
            str(server.access.identity),
            files,
            self._retries,
            self._request_timeout,
        )
        self._stack = AsyncExitStack()
        self._session = await self._stack.enter_async_context(
            shared(
                key,
                lambda: Session(server, retries=self._retries, request_timeout=self._request_timeout),
            )
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def create(self, manifest: Mapping[str, Any]) -> Manifest:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        asked = Asked("create", kind, name, self.namespace)
        call = Call("POST", self._path(kind), asked, _STRICT, dict(manifest), repeat=False)
        try:
            return await self._session.send(call)
        except RefusedRequestError as refused:
            raise refusal_error(self.server, asked, refused.refusal) from None

    async def get(self, kind: Kind, name: str) -> Manifest | None:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        asked = Asked("get", kind, name, self.namespace)
        return await self._named(Call("GET", self._path(kind, name), asked))

    async def list(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Manifest]:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        params = {name: text for name, text in selectors.items() if text} | {"limit": str(_PAGE)}
        asked = Asked("list", kind, "", self.namespace)
        for path in (self._path(kind), self._path(kind).replace(_OLDER, _NEWER)):
            try:
                return await self._pages(path, asked, params)
            except RefusedRequestError as refused:
                if refused.refusal.code != 404 or _OLDER not in path:
                    raise refusal_error(self.server, asked, refused.refusal) from None
        raise AssertionError

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest | None:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        asked = Asked("patch", kind, name, self.namespace)
        # A state's patch that was done already would look like another process's.
        repeat = "resourceVersion" not in (change.get("metadata") or {})
        call = Call(
            "PATCH",
            self._path(kind, name),
            asked,
            _STRICT,
            dict(change),
            "application/merge-patch+json",
            repeat,
        )
        return await self._named(call)

    async def delete(self, kind: Kind, name: str, *, uid: str | None = None) -> bool:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        asked = Asked("delete", kind, name, self.namespace)
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
        }
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        # Without a uid, a repeated request may find the name's next object.
        call = Call("DELETE", self._path(kind, name), asked, body=options, repeat=uid is not None)
        return await self._named(call) is not None

    async def may(self, verb: str, resource: str, group: str) -> bool:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        plural, _, subresource = resource.partition("/")
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
        }
        asked = Asked("create", "SelfSubjectAccessReview", "", self.namespace)
        try:
            answer = await self._session.send(Call("POST", _REVIEWS, asked, body=review))
        except RefusedRequestError:
            return True
        return bool((answer.get("status") or {}).get("allowed"))

    def now(self) -> float:
        """See :class:`~airflow_provider_raybatch.cluster.kuberay.api.KubernetesApi`."""
        return self._session.now()

    async def _named(self, call: Call) -> Manifest | None:
        try:
            return await self._session.send(call)
        except RefusedRequestError as refused:
            if refused.refusal.no_such_object(call.asked):
                return None
            raise refusal_error(self.server, call.asked, refused.refusal) from None

    async def _pages(self, path: str, asked: Asked, params: dict[str, str]) -> builtins.list[Manifest]:
        found: builtins.list[Manifest] = []
        after = ""
        while True:
            more = params | ({"continue": after} if after else {})
            page = await self._session.send(Call("GET", path, asked, more))
            found += page.get("items") or []
            after = (page.get("metadata") or {}).get("continue") or ""
            if not after:
                return found

    def _path(self, kind: str, name: str = "") -> str:
        group, plural = _RESOURCES[kind]
        path = f"{group}/namespaces/{quote(self.namespace, safe='')}/{plural}"
        return f"{path}/{quote(name, safe='')}" if name else path
