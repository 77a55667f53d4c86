# SPDX-License-Identifier: Apache-2.0
"""The providers of clusters that `ray_cluster` describes, each found by its import string when it is needed.

A connection needs none: it leads to an address, or to a private Ray. So a DAG is parsed, and the package
imported, without the module of a provider.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.places.place import Cluster, NotReadyYet, Place

PROVIDERS = {"kubernetes": "airflow_provider_raybatch.kubernetes.provider.KubernetesProvider"}
"""Import string of each provider, by the name that definitions and plain data call it by."""
_DEFAULT = "kubernetes"
"""Of plain data that names none."""


class ClusterDefinition(ABC):
    """A cluster in a DAG's words, for `ray_cluster`; it imports nothing that only a task needs.

    Airflow renders its `template_fields`.

    :cvar provider: its name in :data:`PROVIDERS`.
    :ivar name: of a running cluster; ``None`` where one is made for each run.
    :ivar cluster_wait: seconds or a timedelta that a cluster which is made may take.
    :ivar lease: seconds that a leased cluster lives without a task that uses it; ``None`` for others.
    """

    provider: ClassVar[str]
    name: str | None
    cluster_wait: float | timedelta | str
    lease: float | None = None

    @abstractmethod
    def check(self) -> None:
        """Refuse a mistake once all is rendered.

        :raises SpecError: names argument, value and remedy.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data without secrets, by which a trigger finds a running cluster."""


class ClusterProvider(ABC):
    """Finds, makes, keeps and ends the clusters of one kind of definition.

    What it raises is a ``SpecError``, a ``RayBatchException`` or a ``ClusterError``, whose failure class says
    whether a retry may help. *Facts* are plain data without secrets (:attr:`Cluster.facts`) of a cluster that
    was made for a run; a trigger's data (:meth:`Cluster.for_trigger`) may have secrets, too.
    """

    @abstractmethod
    def definition(self, given: Mapping[str, Any]) -> ClusterDefinition:
        """The cluster of plain data: arguments, or what a task that makes clusters returned."""

    @abstractmethod
    def place(self, definition: Any) -> Place:
        """Where the jobs of a task with this definition are, rendered and checked."""

    @abstractmethod
    async def cluster(self, data: Mapping[str, Any], submission_id: str) -> Cluster:
        """The cluster of a trigger's data.

        :param submission_id: of the job on it.
        """

    @abstractmethod
    def outcome(self, facts: Mapping[str, Any]) -> Outcome | None:
        """How the job of a cluster that was made for it ended; ``None`` while it runs, or waits. Blocks."""

    @abstractmethod
    def ready_trigger(
        self, waiting: NotReadyYet, handle: Mapping[str, Any], cancel_on_kill: bool
    ) -> BaseTrigger:
        """A trigger that waits until a cluster takes jobs, and fires with `failed` and `handle`.

        :param cancel_on_kill: delete the cluster when a user ends the task.
        """

    @abstractmethod
    def ended_trigger(self, facts: Mapping[str, Any], poll_interval: float) -> BaseTrigger:
        """A trigger that fires with the `outcome` of the job of a cluster that was made for it."""


def provider(name: str) -> ClusterProvider:
    """The provider of this name.

    :raises SpecError: it is unknown, or not installed.
    """
    path = PROVIDERS.get(name)
    if path is None:
        raise SpecError(f"provider: {shown(name)} is unknown; known are {', '.join(PROVIDERS)}.")
    module, _, kind = path.rpartition(".")
    try:
        found: ClusterProvider = getattr(import_module(module), kind)()
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise SpecError(
            f"ray_cluster: clusters of {name!r} need {error.name}, which is not installed here; install "
            "airflow-provider-raybatch with it, or use ray_conn_id."
        ) from None
    return found


def provider_of(data: Any) -> ClusterProvider:
    """The provider of plain data, which checks the rest of it; raises as :func:`provider`."""
    return provider(str(data.get("provider", _DEFAULT) if isinstance(data, Mapping) else _DEFAULT))
