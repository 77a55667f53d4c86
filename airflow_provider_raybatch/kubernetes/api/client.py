# SPDX-License-Identifier: Apache-2.0
"""What is asked of a Kubernetes API server, in one namespace."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal, Self
from urllib.parse import quote

from airflow_provider_raybatch.cluster.jobs_api.access import tls_version
from airflow_provider_raybatch.cluster.jobs_api.sharing import shared
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy
from airflow_provider_raybatch.kubernetes.api.errors import ApiRequest
from airflow_provider_raybatch.kubernetes.api.server import ApiServer
from airflow_provider_raybatch.kubernetes.api.session import RETRIES, Call, RefusedRequestError, Session

Kind = Literal["RayJob", "RayCluster", "Secret", "Pod", "Event", "Service", "Workload"]
"""A `Workload` is only listed, if the Role allows it: it says why Kueue does not admit a cluster."""
Manifest = dict[str, Any]
"""An object of Kubernetes as plain data."""

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
_STRICT = {"fieldValidation": "Strict"}
_PAGE = 250


class KubernetesClient:
    """A namespace of an API server; all clients of one server and event loop share its connections.

    Reads and deletes with a `uid` are repeated for some seconds while the server gives no answer, is
    overloaded (429) or fails (5xx). What would do harm twice is repeated only if the server can't have begun
    it. Every method raises a ``ClusterError`` of the kinds in
    :mod:`airflow_provider_raybatch.kubernetes.api.errors`.

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
        limits = (self._retries, self._request_timeout)
        key = ("kubernetes", server.url, str(server.access.identity), files, *limits)
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
        """Create an object; the server refuses fields that it does not know.

        :return: the object as the server keeps it, with `uid` and `creationTimestamp`.
        :raises ObjectExistsError: there is one of this kind and name.
        """
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        request = ApiRequest("create", kind, name, self.namespace)
        call = Call("POST", self._path(kind), request, _STRICT, dict(manifest), repeat=False)
        try:
            return await self._session.send(call)
        except RefusedRequestError as refused:
            raise self.server.refusal_error(request, refused.refusal) from None

    async def get(self, kind: Kind, name: str) -> Manifest | None:
        """The object, ``None`` if it does not exist."""
        request = ApiRequest("get", kind, name, self.namespace)
        return await self._named(Call("GET", self._path(kind, name), request))

    async def list(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Manifest]:
        """All objects that fit both selectors, in the server's latest state, over all pages."""
        selectors = {"labelSelector": labels, "fieldSelector": fields}
        params = {name: text for name, text in selectors.items() if text} | {"limit": str(_PAGE)}
        request = ApiRequest("list", kind, "", self.namespace)
        for path in (self._path(kind), self._path(kind).replace(_OLDER, _NEWER)):
            try:
                return await self._pages(path, request, params)
            except RefusedRequestError as refused:
                if refused.refusal.code != 404 or _OLDER not in path:
                    raise self.server.refusal_error(request, refused.refusal) from None
        raise AssertionError

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest | None:
        """Apply a merge patch; ``None`` if the object does not exist.

        :param change: with `metadata.uid` or `metadata.resourceVersion`, it fits only that object or state.
        :raises ChangedObjectError: it is another one.
        """
        request = ApiRequest("patch", kind, name, self.namespace)
        # A state's patch that was done already would look like another process's.
        repeat = "resourceVersion" not in (change.get("metadata") or {})
        path, merge = self._path(kind, name), "application/merge-patch+json"
        return await self._named(Call("PATCH", path, request, _STRICT, dict(change), merge, repeat))

    async def delete(self, kind: Kind, name: str, *, uid: str | None = None) -> bool:
        """Delete an object after all that it owns (foreground); the answer comes before the object is gone.

        :param uid: delete only this very object.
        :return: whether there was one.
        :raises ChangedObjectError: the object of this name has another `uid`.
        """
        request = ApiRequest("delete", kind, name, self.namespace)
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground",
        }
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        # Without a uid, a repeated request may find the name's next object.
        call = Call("DELETE", self._path(kind, name), request, body=options, repeat=uid is not None)
        return await self._named(call) is not None

    def now(self) -> float:
        """Epoch seconds by the server's clock, from its latest answer; this machine's clock may be off."""
        return self._session.now()

    async def _named(self, call: Call) -> Manifest | None:
        try:
            return await self._session.send(call)
        except RefusedRequestError as refused:
            if refused.refusal.no_such_object(call.request):
                return None
            raise self.server.refusal_error(call.request, refused.refusal) from None

    async def _pages(self, path: str, request: ApiRequest, params: dict[str, str]) -> builtins.list[Manifest]:
        found: builtins.list[Manifest] = []
        after = ""
        while True:
            more = params | ({"continue": after} if after else {})
            page = await self._session.send(Call("GET", path, request, more))
            found += page.get("items") or []
            after = (page.get("metadata") or {}).get("continue") or ""
            if not after:
                return found

    def _path(self, kind: str, name: str = "") -> str:
        group, plural = _RESOURCES[kind]
        path = f"{group}/namespaces/{quote(self.namespace, safe='')}/{plural}"
        return f"{path}/{quote(name, safe='')}" if name else path
