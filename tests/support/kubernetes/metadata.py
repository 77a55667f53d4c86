# SPDX-License-Identifier: Apache-2.0
"""Rules for names, labels and annotations of Kubernetes' objects, for its stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tests.support.kubernetes.kinds import Manifest, Resource

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_WORD = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
    "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_RULE = "name part must consist of alphanumeric characters, '-', '_' or '.'"
_MOST_ANNOTATIONS = 256 * 1024

Cause = tuple[str, str, str]


def metadata_causes(resource: Resource, metadata: Manifest) -> Iterator[Cause]:
    """What is wrong in an object's metadata: reason, field, message."""
    yield from _name(resource, metadata.get("name", ""))
    for part in ("labels", "annotations"):
        for key, value in (metadata.get(part) or {}).items():
            yield from _key(f"metadata.{part}", key)
            if part == "labels":
                yield from _label(value)
    annotations = metadata.get("annotations") or {}
    if (
        sum(len(key.encode()) + len(str(value).encode()) for key, value in annotations.items())
        > _MOST_ANNOTATIONS
    ):
        text = f"Too long: may not be more than {_MOST_ANNOTATIONS} bytes"
        yield "FieldValueTooLong", "metadata.annotations", text
    for index, owner in enumerate(metadata.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                where = f"metadata.ownerReferences[{index}].{field}"
                yield "FieldValueInvalid", where, 'Invalid value: "": must not be empty'


def is_dns_1035(name: str) -> bool:
    """Whether a name is a label of RFC 1035, as KubeRay wants."""
    return len(name) <= 63 and _DNS_1035.fullmatch(name) is not None


def _name(resource: Resource, name: str) -> Iterator[Cause]:
    shown = f"Invalid value: {json.dumps(name, ensure_ascii=False)}: "
    if resource.kind == "Service":
        if not is_dns_1035(name):
            yield (
                "FieldValueInvalid",
                "metadata.name",
                f"{shown}a DNS-1035 label must consist of lower case ...",
            )
    elif resource.kind == "Namespace":
        if not _DNS_LABEL.fullmatch(name):
            yield (
                "FieldValueInvalid",
                "metadata.name",
                f"{shown}a lowercase RFC 1123 label must consist of ...",
            )
    elif len(name) > 253:
        yield "FieldValueInvalid", "metadata.name", f"{shown}must be no more than 253 characters"
    elif not _SUBDOMAIN.fullmatch(name):
        yield "FieldValueInvalid", "metadata.name", shown + _SUBDOMAIN_RULE


def _key(field: str, key: str) -> Iterator[Cause]:
    prefix, _, name = key.rpartition("/")
    shown = f"Invalid value: {json.dumps(key, ensure_ascii=False)}: "
    if len(name) > 63:
        yield "FieldValueInvalid", field, f"{shown}name part must be no more than 63 characters"
    elif not _WORD.fullmatch(name):
        yield "FieldValueInvalid", field, shown + _KEY_RULE
    if "/" in key and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        yield "FieldValueInvalid", field, f"{shown}prefix part {_SUBDOMAIN_RULE}"


def _label(value: str) -> Iterator[Cause]:
    shown = f"Invalid value: {json.dumps(value, ensure_ascii=False)}: "
    if not isinstance(value, str):
        yield "FieldValueTypeInvalid", "metadata.labels", f"{shown}must be a string"
    elif len(value) > 63:
        yield "FieldValueTooLong", "metadata.labels", f"{shown}must be no more than 63 characters"
    elif value and not _WORD.fullmatch(value):
        yield "FieldValueInvalid", "metadata.labels", shown + _VALUE_RULE
