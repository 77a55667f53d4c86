# SPDX-License-Identifier: Apache-2.0
"""The argument `ray_cluster` of operators and sensors, and the place of jobs that it chooses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any, TypeGuard

from airflow_provider_raybatch.coercion import from_text, is_absent
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.places.existing import ConnectedCluster, ExistingCluster
from airflow_provider_raybatch.places.place import Cluster, Place
from airflow_provider_raybatch.places.providers import ClusterDefinition, provider, provider_of


def given_cluster(value: Any, name: str = "ray_cluster") -> ClusterDefinition | None:
    """A rendered and checked copy, since tasks may share what they are given; ``None`` if none is given.

    :param value: a cluster, its arguments as a dictionary or as text, or what ``CreateRayCluster`` returned.
    :raises SpecError: it is something else, or an argument of it can't be used.
    """
    if is_absent(value):
        return None
    refuse_task(value, name)
    given = from_text(value)
    if isinstance(given, Mapping):
        with _named(name):
            given = provider_of(given).definition(given)
    if not isinstance(given, ClusterDefinition):
        raise SpecError(
            f"{name}: {shown(value)} is not a cluster; give a KubeRayCluster, or what one CreateRayCluster "
            f"has returned (of a mapped one by expand({name}=...))."
        )
    rendered = copy(given)
    with _named(name):
        rendered.check()
    return rendered


def refuse_task(value: Any, name: str = "ray_cluster") -> None:
    """Refuse a task in place of what it returns: Airflow would not run it before.

    :raises SpecError: it is a task.
    """
    task_id = getattr(value, "task_id", None)
    if isinstance(task_id, str) and hasattr(value, "output"):
        raise SpecError(
            f"{name}: it is the task {task_id!r}, and not the cluster that it returns; add .output to it."
        )


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Begin a mistake's sentence with the argument of the task."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None


def check_one_cluster(ray_conn_id: Any, ray_cluster: Any) -> None:
    """Refuse a connection beside a cluster that is surely given.

    :raises SpecError: both are given.
    """
    given = isinstance(ray_cluster, (ClusterDefinition, Mapping))
    if given and ray_conn_id not in (None, DEFAULT_CONN_ID):
        raise SpecError(
            f"ray_cluster: ray_conn_id {shown(ray_conn_id)} is given, too, and a job runs on one cluster; "
            "leave one of them out (ray_conn_id=None, where default_args has it)."
        )


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list, or the sequence that Airflow makes of the XComs of a mapped task."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def leased_cluster_task(value: Any) -> str | None:
    """The id of the task whose output is given, if that is a ``CreateRayCluster``, mapped or not."""
    maker = getattr(value, "operator", None)
    kind = getattr(maker, "operator_class", maker)
    return str(maker.task_id) if maker is not None and getattr(kind, "makes_leased_cluster", False) else None


def check_returned(made_by: str | None, ray_cluster: Any) -> None:
    """Refuse what a ``CreateRayCluster`` without a cluster returns: the job would run on `ray_conn_id`'s.

    :param made_by: see :func:`leased_cluster_task`.
    :raises SpecError: the task has returned none.
    """
    if made_by is not None and (is_absent(ray_cluster) or (is_list(ray_cluster) and not len(ray_cluster))):
        raise SpecError(
            f"ray_cluster: the task {made_by!r} has returned no cluster; clear it, and then this one."
        )


def check_lease(poll_interval: float, ray_cluster: ClusterDefinition | None) -> None:
    """Refuse polls of a job that come too seldom to renew the lease of its cluster.

    :raises SpecError: they are further apart than half the lease.
    """
    lease = None if ray_cluster is None else ray_cluster.lease
    if lease is not None and poll_interval > lease / 2:
        raise SpecError(
            f"poll_interval: with {poll_interval:g} s, the lease of {lease:g} s of the shared cluster could "
            "end between two polls; poll at least twice in it, or let CreateRayCluster give a longer lease."
        )


def place_of(ray_conn_id: str, ray_cluster: ClusterDefinition | None = None) -> Place:
    """Where the jobs of a task are.

    :param ray_cluster: rendered and checked; counts in place of `ray_conn_id`.
    :raises RayBatchException: the connection can't be used, or read.
    """
    if ray_cluster is None:
        return ConnectedCluster(RayHook(ray_conn_id).read())
    return provider(ray_cluster.provider).place(ray_cluster)


def existing_cluster_of(ray_conn_id: str, ray_cluster: ClusterDefinition | None = None) -> ExistingCluster:
    """As :func:`place_of`, for a cluster that is there.

    :raises SpecError: `ray_cluster` would be made for a job.
    """
    place = place_of(ray_conn_id, ray_cluster)
    if isinstance(place, ExistingCluster):
        return place
    raise SpecError(
        "ray_cluster: it makes a cluster for each job; name a running one with KubeRayCluster(name=...)."
    )


async def acluster_of(ray_conn_id: str, ray_cluster: Mapping[str, Any] | None, submission_id: str) -> Cluster:
    """The cluster of a deferred task's job.

    :param ray_cluster: what :meth:`Cluster.for_trigger` gave.
    :raises RayBatchException: the connection can't be used, or read.
    :raises ClusterError: its provider gives no answer, or refuses.
    """
    if ray_cluster is None:
        return await ConnectedCluster(await RayHook(ray_conn_id).aread()).cluster()
    return await provider_of(ray_cluster).cluster(ray_cluster, submission_id)
