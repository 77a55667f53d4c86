# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors of Kubernetes, for its stand-in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from tests.support.kubernetes.kinds import Manifest, Resource
from tests.support.kubernetes.refusals import bad_request

_SET = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
_EQUAL = re.compile(r"([^\s=!]+)\s*(==|=|!=)\s*(\S*)")


def by_labels(selector: str) -> Callable[[Manifest], bool]:
    """Whether an object's labels fit all parts of a selector."""
    tests = [_label_test(part) for part in _parts(selector)]
    return lambda found: all(test(found["metadata"].get("labels") or {}) for test in tests)


def by_fields(selector: str, resource: Resource) -> Callable[[Manifest], bool]:
    """Whether an object's fields have the values of a selector."""
    tests = []
    for part in _parts(selector):
        match = _EQUAL.fullmatch(part)
        if match is None:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        field, operator, value = match.groups()
        if field not in {"metadata.name", "metadata.namespace", *resource.fields}:
            raise bad_request(f"field label not supported: {field}")
        tests.append((field.split("."), operator == "!=", value))
    return lambda found: all((_at(found, path) == value) != negated for path, negated, value in tests)


def _parts(selector: str) -> Iterator[str]:
    for part in re.split(r",(?![^(]*\))", selector):
        if part.strip():
            yield part.strip()


def _label_test(part: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda labels: (key in labels and labels[key] in values) == (operator == "in")
    if match := _EQUAL.fullmatch(part):
        key, operator, value = match.groups()
        return lambda labels: (labels.get(key) == value) != (operator == "!=")
    if re.fullmatch(r"!?[\w./-]+", part):
        key = part.removeprefix("!")
        return lambda labels: (key in labels) != part.startswith("!")
    raise bad_request(f"unable to parse requirement: found '{part}'")


def _at(found: Manifest, path: list[str]) -> str:
    value: object = found
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value)
