# SPDX-License-Identifier: Apache-2.0
"""What an API server answers instead of an object, worded as Kubernetes words it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.kubernetes.kinds import Manifest, Resource


class RefusedError(Exception):
    """An answer of 400 or more.

    :param reason: Kubernetes' word for machines; empty: the answer is `message` as plain text.
    :param after: seconds that the client should wait, for a `Retry-After` header.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: Manifest | None = None, after: int | None = None
    ) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.after = after

    def body(self) -> Manifest:
        """A Status of Kubernetes."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({"details": self.details} if self.details else {}),
            "code": self.code,
        }


def _details(resource: Resource, name: str) -> Manifest:
    return {"name": name, **({"group": resource.group} if resource.group else {}), "kind": resource.plural}


def not_found(resource: Resource, name: str) -> RefusedError:
    message = f'{resource.qualified} "{name}" not found'
    return RefusedError(404, "NotFound", message, _details(resource, name))


def not_served() -> RefusedError:
    """The answer where a custom resource is not installed."""
    return RefusedError(404, "", "404 page not found\n")


def already_exists(resource: Resource, name: str) -> RefusedError:
    message = f'{resource.qualified} "{name}" already exists'
    return RefusedError(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: Resource, name: str, why: str) -> RefusedError:
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return RefusedError(409, "Conflict", message, _details(resource, name))


def stale(resource: Resource, name: str) -> RefusedError:
    why = "the object has been modified; please apply your changes to the latest version and try again"
    return conflict(resource, name, why)


def other_uid(resource: Resource, name: str, wanted: str, found: str) -> RefusedError:
    """The answer to a delete of another object of the name."""
    return conflict(
        resource, name, f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    )


def invalid(resource: Resource, name: str, causes: Sequence[tuple[str, str, str]]) -> RefusedError:
    """The answer to an object with wrong values.

    :param causes: reason, field, message of each.
    """
    listed = [{"reason": reason, "message": text, "field": field} for reason, field, text in causes]
    texts = [f"{field}: {text}" for _, field, text in causes]
    said = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details: dict[str, Any] = {
        "name": name,
        **({"group": resource.group} if resource.group else {}),
        "kind": resource.kind,
        "causes": listed,
    }
    return RefusedError(422, "Invalid", f'{resource.qualified_kind} "{name}" is invalid: {said}', details)


def bad_request(message: str) -> RefusedError:
    return RefusedError(400, "BadRequest", message)


def unauthorized() -> RefusedError:
    return RefusedError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> RefusedError:
    named = f'{resource.qualified} "{name}"' if name else resource.qualified
    return RefusedError(403, "Forbidden", f"{named} is forbidden: {why}", _details(resource, name))
