# SPDX-License-Identifier: Apache-2.0
"""The verbs of an API server over a store: a STAND-IN for Kubernetes', without HTTP.

Not here: server-side apply, strategic merge of lists, deletecollection, expressions in schemas.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.kubernetes import refusals
from tests.support.kubernetes.access import ADMIN, Access, User
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.faults import Faults, Request
from tests.support.kubernetes.kinds import CUSTOM, RESOURCES, Manifest, Resource
from tests.support.kubernetes.merging import json_patched, merged
from tests.support.kubernetes.metadata import metadata_causes
from tests.support.kubernetes.schemas import Schemas
from tests.support.kubernetes.store import Store, suffix

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class ApiServer:
    """An API server with the namespace `default`.

    :param kuberay: version of KubeRay's custom resources; empty: KubeRay is not installed.
    :param kueue: whether Kueue's are there.
    :param clock: the server's; a test may shift it.
    """

    def __init__(self, kuberay: str = "1.7.0", *, kueue: bool = False, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.store = Store(self.clock)
        self.schemas = Schemas(kuberay or "1.7.0")
        self.access = Access(self.clock)
        self.faults = Faults()
        self.endpoints: dict[tuple[str, str, str], str] = {}
        """Where a service's pods listen on this machine, by namespace, name, and port or its name."""
        self.served = set(RESOURCES) - CUSTOM
        self.served |= {"RayJob", "RayCluster"} if kuberay else set()
        self.served |= {"Workload", "LocalQueue"} if kueue else set()
        self.add_namespace("default")

    @property
    def admin(self) -> User:
        return self.access.users[ADMIN]

    def add_namespace(self, name: str) -> None:
        phase = {"status": {"phase": "Active"}}
        self.store.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, **phase})

    def get(self, user: User, kind: str, namespace: str, name: str) -> Manifest:
        def act() -> Manifest:
            found = self.store.find(kind, namespace, name)
            if found is None:
                raise refusals.not_found(RESOURCES[kind], name)
            return found

        return self._asked(user, "get", kind, namespace, name, "", act)

    def list(self, user: User, kind: str, namespace: str, **selection: Any) -> Manifest:
        """A page, see :meth:`Store.page`; of a namespace that is not there, an empty one."""

        def act() -> Manifest:
            return self.store.page(RESOURCES[kind], namespace or None, **selection)

        return self._asked(user, "list", kind, namespace, "", "", act)

    def create(
        self, user: User, kind: str, namespace: str, manifest: Mapping[str, Any], *,
        validation: str = "Warn",
    ) -> tuple[Manifest, list[str]]:  # fmt: skip
        """Create an object.

        :param validation: what is done about fields that the schema does not have: Strict, Warn or Ignore.
        :return: the object, and warnings.
        """
        resource = RESOURCES[kind]

        def act() -> tuple[Manifest, list[str]]:
            made = self._decoded(resource, namespace, manifest)
            if not made["metadata"].get("name") and made["metadata"].get("generateName"):
                made["metadata"]["name"] = made["metadata"]["generateName"] + suffix()
            made, warnings = self._checked(resource, made, validation)
            if resource.status and kind in CUSTOM:
                made.pop("status", None)
            self.access.admit("create", resource, made, self.store.all(kind, namespace))
            return self.store.create(made), warnings

        return self._asked(user, "create", kind, namespace, str(_name(manifest)), "", act)

    def patch(
        self, user: User, kind: str, namespace: str, name: str, change: Any, *,
        content_type: str = MERGE_PATCH, subresource: str = "", validation: str = "Warn",
    ) -> tuple[Manifest, list[str]]:  # fmt: skip
        """Patch an object, or its status.

        Another `metadata.uid` is 422 with the cause `metadata.uid`, as Kubernetes answers (a delete: 409);
        another `metadata.resourceVersion` is 409.
        """

        def patched(current: Manifest) -> Manifest:
            if content_type == JSON_PATCH:
                return json_patched(current, change)
            if content_type == MERGE_PATCH or (
                content_type.startswith("application/strategic") and kind == "Pod"
            ):
                return merged(current, change)
            supported = f"{JSON_PATCH}, {MERGE_PATCH}, application/apply-patch+yaml"
            text = "the body of the request was in an unknown format - accepted media types include"
            raise refusals.RefusedError(415, "UnsupportedMediaType", f"{text}: {supported}")

        return self._changed(user, kind, namespace, name, patched, subresource, validation)

    def delete(
        self, user: User, kind: str, namespace: str, name: str, *, uid: str | None = None,
        propagation: str = "Background",
    ) -> Manifest:  # fmt: skip
        """Delete an object; the answer is the object if something still holds it, else a Status."""
        resource = RESOURCES[kind]

        def act() -> Manifest:
            found = self.store.find(kind, namespace, name)
            if found is not None:
                self.access.admit("delete", resource, found)
                found = self.store.delete((kind, namespace, name), uid=uid, propagation=propagation) or found
                if self.store.find(kind, namespace, name) is not None:
                    return found
            if found is None:
                raise refusals.not_found(resource, name)
            details = {"name": name, "kind": resource.plural, "uid": found["metadata"]["uid"]}
            body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
            return {**body, "details": {**details, **({"group": resource.group} if resource.group else {})}}

        return self._asked(user, "delete", kind, namespace, name, "", act)

    def _changed(
        self, user: User, kind: str, namespace: str, name: str,
        change: Callable[[Manifest], Manifest], subresource: str, validation: str,
    ) -> tuple[Manifest, list[str]]:  # fmt: skip
        resource = RESOURCES[kind]

        def act() -> tuple[Manifest, list[str]]:
            with self.store.changed:
                current = self.store.find(kind, namespace, name)
                if current is None:
                    raise refusals.not_found(resource, name)
                made = self._decoded(resource, namespace, change(current))
                if (given := made["metadata"].get("name")) != name:
                    text = f"the name of the object ({given}) does not match the name on the URL ({name})"
                    raise refusals.bad_request(text)
                if resource.status and subresource == "status":
                    given = made
                    made = {**current, "status": given.get("status", {})}
                    made["metadata"]["resourceVersion"] = given["metadata"].get(
                        "resourceVersion", current["metadata"]["resourceVersion"]
                    )
                elif resource.status:
                    made.pop("status", None)
                    made |= {"status": current["status"]} if "status" in current else {}
                made, warnings = self._checked(resource, made, validation)
                self.access.admit("patch", resource, made)
                return self.store.replace(made), warnings

        return self._asked(user, "patch", kind, namespace, name, subresource, act)

    def _asked(
        self, user: User, verb: str, kind: str, namespace: str, name: str, subresource: str,
        act: Callable[[], Any],
    ) -> Any:  # fmt: skip
        resource = RESOURCES[kind]

        def allowed() -> Any:
            self.access.authorize(user, verb, resource, namespace, name, subresource)
            if kind not in self.served:
                raise refusals.not_served()
            return act()

        return self.faults.around(Request(verb, kind, namespace, name, subresource, user.name), allowed)

    def _decoded(self, resource: Resource, namespace: str, manifest: Mapping[str, Any]) -> Manifest:
        made: Manifest = json.loads(json.dumps(manifest))
        if (made.get("apiVersion"), made.get("kind")) != (resource.api_version, resource.kind):
            text = f"the object provided is unrecognized (must be of type {resource.kind})"
            raise refusals.bad_request(f"{text}: {made.get('apiVersion')}, {made.get('kind')}")
        metadata = made.setdefault("metadata", {})
        if resource.namespaced:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise refusals.bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            if self.store.find("Namespace", "", namespace) is None:
                raise refusals.not_found(RESOURCES["Namespace"], namespace)
        return made

    def _checked(self, resource: Resource, made: Manifest, validation: str) -> tuple[Manifest, list[str]]:
        reading = self.schemas.read(resource.kind, made)
        unknown = [f'unknown field "{field}"' for field in reading.unknown]
        if unknown and validation == "Strict":
            raise refusals.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"strict decoding error: {', '.join(unknown)}"
            )
        name = made["metadata"].get("name", "")
        causes = [*metadata_causes(resource, made["metadata"]), *reading.causes]
        if causes:
            raise refusals.invalid(resource, name, causes)
        if resource.kind == "Secret":
            _encode(reading.found)
        return reading.found, unknown if validation == "Warn" else []


def _name(manifest: Mapping[str, Any]) -> object:
    metadata = manifest.get("metadata")
    return metadata.get("name", "") if isinstance(metadata, Mapping) else ""


def _encode(secret: Manifest) -> None:
    """Move `stringData` into `data`, and refuse what is not base64."""
    data = secret.setdefault("data", {})
    for key, text in secret.pop("stringData", {}).items():
        data[key] = base64.b64encode(text.encode()).decode()
    secret.setdefault("type", "Opaque")
    for text in data.values():
        try:
            base64.b64decode(text, validate=True)
        except ValueError as error:
            said = 'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
            raise refusals.bad_request(said) from error
