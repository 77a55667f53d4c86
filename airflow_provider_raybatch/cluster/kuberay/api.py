# SPDX-License-Identifier: Apache-2.0
"""What is used of a Kubernetes API server, in one namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Kind = Literal["RayJob", "RayCluster", "Secret", "Pod", "Event", "Service", "Workload"]
"""A `Workload` (`kueue.x-k8s.io`, `v1beta1` or else `v1beta2`) is only listed, if the Role allows it: it says
why Kueue does not admit a cluster.
"""

Manifest = dict[str, Any]
"""An object of Kubernetes as plain data."""


class KubernetesApi(Protocol):
    """A namespace of an API server, entered with ``async with``.

    Every method raises :class:`~airflow_provider_raybatch.cluster.jobs_api.errors.ClusterError` of the kinds
    in :mod:`airflow_provider_raybatch.cluster.kuberay.errors`.
    """

    namespace: str

    async def __aenter__(self) -> KubernetesApi:
        """The client itself."""

    async def __aexit__(self, *error: object) -> None:
        """Give the client up."""

    async def create(self, manifest: Mapping[str, Any]) -> Manifest:
        """Create an object; the server refuses fields that it does not know (``fieldValidation=Strict``).

        :return: the object as the server keeps it, with `uid` and `creationTimestamp`.
        :raises ObjectExistsError: there is one of this kind and name.
        """

    async def get(self, kind: Kind, name: str) -> Manifest | None:
        """The object, ``None`` if there is none."""

    async def list(self, kind: Kind, *, labels: str = "", fields: str = "") -> list[Manifest]:
        """All objects that fit both selectors, in the server's latest state, over all pages."""

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest | None:
        """Apply a merge patch; ``None`` if there is no such object.

        :param change: with `metadata.uid` or `metadata.resourceVersion`, it fits only that object or state.
        :raises ConflictError: it is another one.
        """

    async def delete(self, kind: Kind, name: str, *, uid: str | None = None) -> bool:
        """Delete an object after all that it owns (foreground); the answer comes before the object is gone.

        :param uid: delete only this very object.
        :return: whether there was one.
        :raises ConflictError: the object of this name has another `uid`.
        """

    async def may(self, verb: str, resource: str, group: str) -> bool:
        """Whether these credentials have a right in the namespace, by a `SelfSubjectAccessReview`.

        :param resource: may have a subresource, such as ``services/proxy``.
        :return: true, too, where the server reviews no access.
        """

    def now(self) -> float:
        """Epoch seconds by the server's clock, from its latest answer; this machine's clock may be off."""
