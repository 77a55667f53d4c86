# SPDX-License-Identifier: Apache-2.0
"""Who may do what, in the stand-in for a Kubernetes: tokens, roles, webhooks, quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes import refusals
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.kinds import Manifest, Resource
from tests.support.kubernetes.quantities import requests_of

Rule = Mapping[str, Any]
"""A rule of a Role: apiGroups, resources, verbs, resourceNames."""

ADMIN = "kubernetes-admin"
"""The user who may do everything, like the controllers."""


@dataclass
class User:
    """An account.

    :param rules: of the Roles that are bound to it in `namespace`; ``None``: it may do everything.
    :param namespace: in which the rules hold; empty: in all.
    """

    name: str
    rules: Sequence[Rule] | None = None
    namespace: str = ""


@dataclass(frozen=True)
class Webhook:
    """An admission webhook that refuses objects.

    :param refuses: returns the message for a refused object, ``None`` for one that may pass.
    """

    name: str
    refuses: Callable[[str, Manifest], str | None]
    code: int = 403


@dataclass
class Access:
    """What is asked before a request reaches the store."""

    clock: Clock
    users: dict[str, User] = field(default_factory=lambda: {ADMIN: User(ADMIN)})
    webhooks: list[Webhook] = field(default_factory=list)
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    """What a namespace may hold: by namespace and ``count/rayjobs.ray.io`` or ``requests.nvidia.com/gpu``."""
    _tokens: dict[str, tuple[str, float]] = field(default_factory=dict)

    def grant(
        self, name: str, rules: Iterable[Rule] | None = None, *, namespace: str = "", token: str = "",
        expires: float = float("inf"),
    ) -> User:  # fmt: skip
        """Make an account.

        :param token: with which it logs in over HTTP; empty: without one.
        :param expires: epoch seconds by the server's clock after which the token is refused.
        """
        user = self.users[name] = User(name, None if rules is None else list(rules), namespace)
        if token:
            self._tokens[token] = (name, expires)
        return user

    def revoke(self, token: str) -> None:
        """Refuse a token from now on."""
        self._tokens.pop(token, None)

    def user_of(self, token: str) -> User:
        """Whose token it is; 401 for one that is unknown or has expired."""
        name, expires = self._tokens.get(token, ("", 0.0))
        if not name or self.clock.now() >= expires:
            raise refusals.unauthorized()
        return self.users[name]

    def authorize(
        self, user: User, verb: str, resource: Resource, namespace: str, name: str, subresource: str = ""
    ) -> None:
        """Raise 403 unless a rule allows the request."""
        plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
        if self.allows(user, verb, resource.group, plural, namespace, name):
            return
        where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
        why = f'User "{user.name}" cannot {verb} resource "{plural}" in API group "{resource.group}"{where}'
        raise refusals.forbidden(resource, "" if verb in {"create", "list", "watch"} else name, why)

    def allows(self, user: User, verb: str, group: str, plural: str, namespace: str, name: str = "") -> bool:
        """Whether a rule allows a request.

        :param plural: with the subresource.
        """
        return user.rules is None or (
            user.namespace in {"", namespace}
            and any(_allows(rule, verb, group, plural, name) for rule in user.rules)
        )

    def admit(
        self, verb: str, resource: Resource, manifest: Manifest, there: Sequence[Manifest] = ()
    ) -> None:
        """Raise what a webhook or a quota refuses.

        :param there: objects of the kind in the namespace.
        """
        for webhook in self.webhooks:
            if (message := webhook.refuses(verb, manifest)) is not None:
                said = f'admission webhook "{webhook.name}" denied the request: {message}'
                raise refusals.RefusedError(
                    webhook.code, "Forbidden" if webhook.code == 403 else "BadRequest", said
                )
        if verb != "create":
            return
        metadata = manifest["metadata"]
        for (namespace, counted), limit in self.quotas.items():
            wanted, used = _usage(resource, manifest, counted), 0.0
            if namespace == metadata.get("namespace", "") and wanted:
                used = sum(_usage(resource, each, counted) for each in there)
                if used + wanted > limit:
                    why = (
                        f"exceeded quota: quota, requested: {counted}={wanted:g}, used: {counted}={used:g}, "
                        f"limited: {counted}={limit:g}"
                    )
                    raise refusals.forbidden(resource, metadata.get("name", ""), why)


def _allows(rule: Rule, verb: str, group: str, plural: str, name: str) -> bool:
    names = rule.get("resourceNames")
    if names and (verb in {"create", "deletecollection"} or name not in names):
        return False
    return (
        _has(rule.get("apiGroups", ()), group)
        and _has(rule.get("resources", ()), plural)
        and _has(rule.get("verbs", ()), verb)
    )


def _has(allowed: Iterable[str], wanted: str) -> bool:
    return any(each in {wanted, "*"} for each in allowed)


def _usage(resource: Resource, manifest: Manifest, counted: str) -> float:
    """How much of a quota an object takes."""
    kind, _, name = counted.partition("/" if counted.startswith("count/") else ".")
    if kind == "count":
        return float(name == resource.qualified)
    return requests_of(manifest).get(name, 0.0) if resource.kind == "Pod" else 0.0
