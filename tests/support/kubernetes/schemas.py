# SPDX-License-Identifier: Apache-2.0
"""Schemas of custom resources, for the stand-in for a Kubernetes: unknown fields, types, defaults.

Expressions (`x-kubernetes-validations`) are not evaluated: what breaks these only a real API server says.
Pod templates are checked as KubeRay 1.7.0 describes them, whatever its version.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.kubernetes.kinds import Manifest

Cause = tuple[str, str, str]
"""Reason, field, message."""

_SECRET = {
    "type": "object",
    "properties": {
        "immutable": {"type": "boolean"},
        "type": {"type": "string"},
        "data": {"type": "object", "additionalProperties": {"type": "string"}},
        "stringData": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
_TYPES = {
    "object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
}  # fmt: skip
_METADATA = {
    "name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid",
    "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields", "selfLink",
    "deletionGracePeriodSeconds",
}  # fmt: skip


@dataclass
class Reading:
    """An object as a schema reads it.

    :param unknown: fields that the schema does not have; they are not in `found`.
    """

    found: Any
    unknown: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


class Schemas:
    """Schemas by kind; a kind without one is taken as it is.

    :param kuberay: version of KubeRay's custom resources: 1.5.2, 1.6.2 or 1.7.0.
    """

    def __init__(self, kuberay: str = "1.7.0") -> None:
        self.kuberay = kuberay
        folder = Path(__file__).with_name("crds")
        self._by_kind: dict[str, Any] = {"Secret": _SECRET}
        template = _pod_template(folder / "podtemplate-1.7.0.json")
        for kind, plural in (("RayJob", "rayjobs"), ("RayCluster", "rayclusters")):
            data = json.loads((folder / f"{plural}-{kuberay}.json").read_text("utf-8"))
            self._by_kind[kind] = _with_templates(data["openAPIV3Schema"], template)

    def read(self, kind: str, manifest: Manifest) -> Reading:
        """Prune, check and complete an object by the schema of its kind."""
        schema = self._by_kind.get(kind)
        reading = Reading(copy.deepcopy(manifest))
        for unknown in sorted(set(reading.found["metadata"]) - _METADATA):
            reading.unknown.append(f"metadata.{unknown}")
            del reading.found["metadata"][unknown]
        if schema is not None:
            properties = {name: {"x-kubernetes-preserve-unknown-fields": True} for name in manifest}
            known = {**properties, **schema["properties"]} if kind != "Secret" else schema["properties"]
            head = {name: reading.found.pop(name) for name in ("apiVersion", "kind", "metadata")}
            known = {name: of for name, of in known.items() if name not in head}
            if kind != "Secret":
                unknown_top = set(reading.found) - set(schema["properties"])
                known = {name: of for name, of in known.items() if name not in unknown_top}
            _walk({"type": "object", "properties": known}, reading.found, "", reading)
            reading.found = {**head, **reading.found}
        return reading


def _pod_template(path: Path) -> Manifest:
    """The schema of pod templates; what its file leaves out is taken as it is."""
    template: Manifest = json.loads(path.read_text("utf-8"))["openAPIV3Schema"]
    free = {"x-kubernetes-preserve-unknown-fields": True}
    pod = template["properties"]["spec"]["properties"]
    pod |= dict.fromkeys(("affinity", "initContainers", "ephemeralContainers"), free)
    hooks = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
    pod["containers"]["items"]["properties"] |= dict.fromkeys(hooks, free)
    return template


def _with_templates(schema: Any, template: Manifest) -> Any:
    """The schema with that of pod templates in its place."""
    if isinstance(schema, dict):
        if schema.get("note") == "PodTemplateSpec":
            return template
        return {key: _with_templates(value, template) for key, value in schema.items()}
    return schema


def _walk(schema: Manifest, value: Any, path: str, reading: Reading) -> None:
    reading.causes += _wrong(schema, value, path)
    if isinstance(value, dict):
        _walk_object(schema, value, path, reading)
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            _walk(schema["items"], each, f"{path}[{index}]", reading)


def _walk_object(schema: Manifest, value: Manifest, path: str, reading: Reading) -> None:
    properties, others = schema.get("properties"), schema.get("additionalProperties")
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "note" in schema
    for name, of in (properties or {}).items():
        if "default" in of:
            value.setdefault(name, copy.deepcopy(of["default"]))
    for name in schema.get("required", ()):
        if name not in value:
            reading.causes.append(("FieldValueRequired", _joined(path, name), "Required value"))
    for name in list(value):
        inner = (properties or {}).get(name, others if isinstance(others, dict) else None)
        if inner is not None:
            if value[name] is None and not inner.get("nullable"):
                del value[name]  # as the API server does with a null where none may be
            else:
                _walk(inner, value[name], _joined(path, name), reading)
        elif not keeps and properties is not None:
            reading.unknown.append(_joined(path, name))
            del value[name]


def _wrong(schema: Manifest, value: Any, path: str) -> Iterator[Cause]:
    wanted = schema.get("type")
    if wanted and not _is(value, wanted) and not schema.get("x-kubernetes-int-or-string"):
        shown = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}
        text = (
            f'Invalid value: "{shown.get(type(value), "number")}": {path} in body must be of type {wanted}: '
        )
        yield "FieldValueTypeInvalid", path, text + json.dumps(shown.get(type(value), "number"))
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(json.dumps(each) for each in schema["enum"])
        text = f"Unsupported value: {json.dumps(value)}: supported values: {supported}"
        yield "FieldValueNotSupported", path, text
    if "minimum" in schema and value < schema["minimum"]:
        least = f"should be greater than or equal to {schema['minimum']}"
        yield "FieldValueInvalid", path, f"Invalid value: {value}: {path} in body {least}"
    if schema.get("format") == "int32" and isinstance(value, int) and not -(2**31) <= value < 2**31:
        yield (
            "FieldValueInvalid",
            path,
            f'Invalid value: {value}: {path} in body must be of type int32: "int64"',
        )


def _is(value: Any, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[wanted])


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
