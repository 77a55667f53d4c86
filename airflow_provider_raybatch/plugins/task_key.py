# SPDX-License-Identifier: Apache-2.0
"""Which task instance a page is about, by which keys a destination knows it, and why nothing is shown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from airflow.configuration import conf

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.hooks.installation import VARIABLE, known_installation_id
from airflow_provider_raybatch.hooks.ray import RayHook


class NotShownError(RaybatchError):
    """There is nothing to show.

    :param message: one sentence, which a reader of the task's XComs may see: without secrets.
    :param status: of the answer in HTTP.
    """

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskInstance:
    """A task instance of this Airflow."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def key(self, namespace: str) -> TaskKey:
        """What its jobs are known by."""
        return TaskKey(
            namespace=namespace,
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=self.task_id,
            map_index=self.map_index,
        )


def keys_of(ti: TaskInstance, ray_conn_id: str) -> Sequence[TaskKey]:
    """The keys of a task instance: of its connection's namespace, and of this installation.

    A run keeps the namespace that it began with, so both may be in use.

    :param ray_conn_id: the task's connection.
    :raises NotShownError: no namespace of this Airflow is known.
    """
    names = [_of_connection(ray_conn_id), known_installation_id(_team(ti.dag_id))]
    keys = [ti.key(name) for name in dict.fromkeys(names) if name]
    if not keys:
        raise NotShownError(
            f"No job of this Airflow is known: the Variable {VARIABLE!r}, which the first task makes, can't "
            "be read."
        )
    return keys


def _of_connection(ray_conn_id: str) -> str | None:
    try:
        return RayHook(ray_conn_id).read().namespace
    except Exception as error:  # a task with a cluster of its own needs no connection
        _log.info("The namespace in connection %r is not known: %s", ray_conn_id, error)
        return None


def _team(dag_id: str) -> str | None:
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    from airflow.models.dag import DagModel

    return DagModel.get_team_name(dag_id)
