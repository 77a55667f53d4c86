# SPDX-License-Identifier: Apache-2.0
"""The proxy to services of the stand-in for a Kubernetes: its API server asks the service for the client."""

from __future__ import annotations

import http.client
from collections.abc import Mapping

from tests.support.kubernetes import refusals
from tests.support.kubernetes.access import User
from tests.support.kubernetes.faults import Request
from tests.support.kubernetes.kinds import RESOURCES
from tests.support.kubernetes.paths import Target
from tests.support.kubernetes.server import ApiServer

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OWN = {"connection", "transfer-encoding", "content-length", "host", "date", "server"}
_SECONDS = 30


def forwarded(
    api: ApiServer, user: User, target: Target, method: str, query: str,
    headers: Mapping[str, str], content: bytes,
) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
    """Code, headers and body of the service's answer, or of the reason why there is none.

    :param headers: without `Authorization`, which the API server keeps to itself.
    """

    def act() -> tuple[int, dict[str, str], bytes]:
        api.access.authorize(
            user, _VERBS[method], target.resource, target.namespace, target.name, target.subresource
        )
        path = f"{target.rest or '/'}{'?' if query else ''}{query}"
        return _asked(_address(api, target), method, path, headers, content)

    request = Request(
        "proxy", target.resource.kind, target.namespace, target.name, f"{method} {target.rest}", user.name
    )
    found: tuple[int, dict[str, str], bytes] = api.faults.around(request, act)
    return found


def _address(api: ApiServer, target: Target) -> str:
    """Where the service's pod listens on this machine; its name is ``[SCHEME:]NAME[:PORT]``."""
    parts = target.name.split(":")
    name, port = (parts[1], parts[2]) if len(parts) == 3 else (parts[0], parts[1] if len(parts) == 2 else "")
    service = api.store.find("Service", target.namespace, name)
    if service is None:
        raise refusals.not_found(RESOURCES["Service"], name)
    ports = {str(each["port"]) for each in service["spec"]["ports"]}
    ports |= {each["name"] for each in service["spec"]["ports"] if "name" in each}
    address = api.endpoints.get((target.namespace, name, port))
    if port not in ports or address is None:
        text = f'no endpoints available for service "{name}"'
        raise refusals.RefusedError(503, "ServiceUnavailable", text)
    return address


def _asked(
    address: str, method: str, path: str, headers: Mapping[str, str], content: bytes
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address, timeout=_SECONDS)
    try:
        passed = {key: value for key, value in headers.items() if key.lower() not in _OWN}
        connection.request(method, path, body=content or None, headers=passed)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, {k: v for k, v in answer.getheaders() if k.lower() not in _OWN}, body
    except (OSError, http.client.HTTPException) as error:
        why = "connect: connection refused" if isinstance(error, ConnectionRefusedError) else str(error)
        text = f"error trying to reach service: dial tcp {address}: {why}"
        raise refusals.RefusedError(503, "ServiceUnavailable", text) from error
    finally:
        connection.close()
