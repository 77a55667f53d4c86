# SPDX-License-Identifier: Apache-2.0
"""Paths of Kubernetes' API, for its stand-in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from tests.support.kubernetes.kinds import Resource, resource_at

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+)(?P<rest>/.*)?)?)?"
)


@dataclass(frozen=True)
class Target:
    """What a path names.

    :param rest: the path below a proxied service, with its first slash.
    """

    resource: Resource
    namespace: str
    name: str
    subresource: str
    rest: str


def target_of(path: str) -> Target | None:
    """What a path names; ``None`` for one that is not served."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    group, version = match["group"] or "", match["core"] or match["version"]
    resource = resource_at(group, version, match["plural"])
    if resource is None:
        return None
    named = {part: unquote(match[part] or "") for part in ("namespace", "name", "sub")}
    return Target(resource, named["namespace"], named["name"], named["sub"], match["rest"] or "")
