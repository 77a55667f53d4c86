# SPDX-License-Identifier: Apache-2.0
"""What the stand-in for a Kubernetes keeps: objects, their versions, and how they came and went."""

from __future__ import annotations

import base64
import json
import secrets
import threading
import uuid
from collections import defaultdict
from typing import Any

from tests.support.kubernetes import refusals
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.kinds import RESOURCES, Manifest, Resource
from tests.support.kubernetes.selectors import by_fields, by_labels

Key = tuple[str, str, str]
"""Kind, namespace, name."""

FOREGROUND = "foregroundDeletion"


class Store:
    """Objects by kind, namespace and name. Everything that comes in and goes out is a copy."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self._objects: dict[Key, Manifest] = {}
        self._keys_of_kind: dict[str, set[Key]] = defaultdict(set)
        self._keys_by_uid: dict[str, Key] = {}

    def all(self, kind: str | None = None, namespace: str | None = None) -> list[Manifest]:
        """Every object, in the order of its name."""
        with self.changed:
            return [copied(found) for found in self.peek(kind, namespace)]

    def peek(self, kind: str | None = None, namespace: str | None = None) -> list[Manifest]:
        """What :meth:`all` returns, without copies: it must not be changed."""
        with self.changed:
            keys = self._objects if kind is None else self._keys_of_kind[kind]
            return [self._objects[key] for key in sorted(keys) if namespace in {None, key[1]}]

    def find(self, kind: str, namespace: str, name: str) -> Manifest | None:
        with self.changed:
            return copied(self._objects.get((kind, namespace, name)))

    def with_uid(self, uid: str) -> Manifest | None:
        with self.changed:
            return copied(self._objects.get(self._keys_by_uid.get(uid, ("", "", ""))))

    def create(self, manifest: Manifest) -> Manifest:
        """Keep a new object; what the server sets is set."""
        made = copied(manifest)
        metadata = made["metadata"]
        if not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + suffix()
        key = key_of(made)
        with self.changed:
            if key in self._objects:
                raise refusals.already_exists(RESOURCES[key[0]], key[2])
            for field in ("deletionTimestamp", "resourceVersion"):
                metadata.pop(field, None)
            metadata |= {
                "uid": str(uuid.uuid4()),
                "generation": 1,
                "creationTimestamp": self.clock.timestamp(),
            }
            self._keep(made)
            return copied(made)

    def replace(self, manifest: Manifest) -> Manifest:
        """Keep a changed object, if it is still the version that it was made from."""
        changed = copied(manifest)
        key = key_of(changed)
        resource = RESOURCES[key[0]]
        with self.changed:
            current = self._objects.get(key)
            if current is None:
                raise refusals.not_found(resource, key[2])
            metadata, before = changed["metadata"], current["metadata"]
            if metadata.get("uid", before["uid"]) != before["uid"]:
                text = f'Invalid value: "{metadata["uid"]}": field is immutable'
                raise refusals.invalid(resource, key[2], [("FieldValueInvalid", "metadata.uid", text)])
            if metadata.get("resourceVersion", before["resourceVersion"]) != before["resourceVersion"]:
                raise refusals.stale(resource, key[2])
            _hold_metadata(resource, key[2], metadata, before)
            metadata["resourceVersion"] = before["resourceVersion"]
            if changed == current:
                return changed
            if _desired(changed) != _desired(current):
                metadata["generation"] = before["generation"] + 1
            if metadata.get("deletionTimestamp") and not metadata.get("finalizers") and not _lingers(changed):
                self._drop(changed)
            else:
                self._keep(changed)
            return copied(changed)

    def delete(self, key: Key, *, uid: str | None = None, propagation: str = "Background") -> Manifest | None:
        """Delete an object, or mark it where something holds it.

        :param propagation: Background or Foreground: when what it owns goes.
        :return: the object if it is still there.
        """
        resource = RESOURCES[key[0]]
        with self.changed:
            current = self._objects.get(key)
            if current is None:
                raise refusals.not_found(resource, key[2])
            if uid is not None and uid != current["metadata"]["uid"]:
                raise refusals.other_uid(resource, key[2], uid, current["metadata"]["uid"])
            marked = copied(current)
            metadata = marked["metadata"]
            finalizers = metadata.get("finalizers", [])
            if propagation == "Foreground" and FOREGROUND not in finalizers:
                finalizers = [*finalizers, FOREGROUND]
            metadata.setdefault("deletionTimestamp", self.clock.timestamp())
            metadata["finalizers"] = finalizers
            if metadata["finalizers"] or _lingers(marked):
                if not metadata["finalizers"]:
                    del metadata["finalizers"]
                if marked != current:
                    self._keep(marked)
                return copied(marked)
            self._drop(marked)
            return None

    def remove(self, key: Key) -> None:
        """Take an object away whatever holds it, as a kubelet does with a pod that has ended."""
        with self.changed:
            if (found := self._objects.get(key)) is not None:
                self._drop(copied(found))

    def page(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = "",
        limit: int | None = None, after: str = "",
    ) -> Manifest:  # fmt: skip
        """A list as the API server returns it, `limit` objects of it.

        :param after: `continue` of the page before.
        """
        fits_labels, fits_fields = by_labels(labels), by_fields(fields, resource)
        with self.changed:
            version, start = _continued(after) if after else (self.version, ["", ""])
            found = [
                each
                for each in self.peek(resource.kind, namespace)
                if fits_labels(each) and fits_fields(each) and _place(each) > start
            ]
            metadata: Manifest = {"resourceVersion": str(version)}
            if limit and len(found) > limit:
                metadata["remainingItemCount"] = len(found) - limit
                found = found[:limit]
                token = json.dumps([version, _place(found[-1])])
                metadata["continue"] = base64.urlsafe_b64encode(token.encode()).decode()
        kind = f"{resource.kind}List"
        items = [copied(each) for each in found]
        return {"kind": kind, "apiVersion": resource.api_version, "metadata": metadata, "items": items}

    def _keep(self, manifest: Manifest) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        key = key_of(manifest)
        self._objects[key] = copied(manifest)
        self._keys_of_kind[key[0]].add(key)
        self._keys_by_uid[manifest["metadata"]["uid"]] = key
        self.changed.notify_all()

    def _drop(self, manifest: Manifest) -> None:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        key = key_of(manifest)
        del self._objects[key]
        self._keys_of_kind[key[0]].discard(key)
        del self._keys_by_uid[manifest["metadata"]["uid"]]
        self.changed.notify_all()


def copied(value: Any) -> Any:
    """A copy of plain data; several times faster than ``copy.deepcopy``."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value


def key_of(manifest: Manifest) -> Key:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def suffix() -> str:
    """Five characters, as Kubernetes ends a generated name."""
    return "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))


def _hold_metadata(resource: Resource, name: str, metadata: Manifest, before: Manifest) -> None:
    """Set what no request changes, and refuse new finalizers of what is being deleted."""
    for field in ("uid", "creationTimestamp", "deletionTimestamp", "generation"):
        if field in before:
            metadata[field] = before[field]
        else:
            metadata.pop(field, None)
    if not metadata.get("finalizers"):
        metadata.pop("finalizers", None)
    added = set(metadata.get("finalizers", ())) - set(before.get("finalizers", ()))
    if before.get("deletionTimestamp") and added:
        text = "Forbidden: no new finalizers can be added if the object is being deleted"
        raise refusals.invalid(resource, name, [("FieldValueForbidden", "metadata.finalizers", text)])


def _desired(manifest: Manifest) -> Manifest:
    """The part of an object whose changes count as a generation."""
    return {key: value for key, value in manifest.items() if key not in {"metadata", "status"}}


def _lingers(manifest: Manifest) -> bool:
    """Whether it stays until a kubelet has ended it: a pod on a node."""
    return manifest["kind"] == "Pod" and bool((manifest.get("spec") or {}).get("nodeName"))


def _place(manifest: Manifest) -> list[str]:
    metadata = manifest["metadata"]
    return [metadata.get("namespace", ""), metadata["name"]]


def _continued(token: str) -> tuple[int, list[str]]:
    try:
        version, start = json.loads(base64.urlsafe_b64decode(token))
    except ValueError as error:
        raise refusals.bad_request("continue key is not valid") from error
    return version, start
