# SPDX-License-Identifier: Apache-2.0
"""Arguments of all operators: checked while a DAG is parsed, converted when a task runs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

from airflow.sdk.configuration import conf

from airflow_provider_raybatch.coercion import boolean, is_absent, listed, positive_seconds
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.operators.cancel_handler import CancelHandler
from airflow_provider_raybatch.operators.deadline import parse_deadline
from airflow_provider_raybatch.operators.rendering import LiteralTextOperator, is_reference
from airflow_provider_raybatch.places.choosing import (
    check_lease,
    check_one_cluster,
    check_returned,
    given_cluster,
    leased_cluster_task,
    refuse_task,
)

if TYPE_CHECKING:
    from airflow_provider_raybatch.places.providers import ClusterDefinition

DEFERRABLE: bool = conf.getboolean("operators", "default_deferrable", fallback=False)


def _connection(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise SpecError(f"{name}: {shown(value)} is not the id of a connection; give it as text.")
    return value


def _point_in_time(value: Any, name: str) -> Any:
    parse_deadline(value)
    return value


def _stale_state(value: Any, name: str) -> Any:
    if value not in get_args(OnStaleState):
        raise SpecError(f"{name}: {shown(value)} is unknown; use 'replace', 'adopt' or 'fail'.")
    return value


_COMMON: dict[str, tuple[Any, Callable[[Any, str], Any]]] = {
    "ray_conn_id": (DEFAULT_CONN_ID, _connection),
    "deadline": (None, _point_in_time),
    "deferrable": (DEFERRABLE, boolean),
    "poll_interval": (10.0, positive_seconds),
    "timeout": (None, positive_seconds),
    "cancel_on_kill": (True, boolean),
    "on_stale_state": ("replace", _stale_state),
    "ray_cluster": (None, given_cluster),
    "wait_for_completion": (True, boolean),
}
COMMON = tuple(_COMMON)
"""Their names; only ``RayJobOperator`` takes `wait_for_completion` as an argument."""


def converted(name: str, value: Any) -> Any:
    """The argument `name` with its type, or its default where `value` counts as not given.

    :raises SpecError: it can't be used.
    """
    default, convert = _COMMON[name]
    return default if is_absent(value) else convert(value, name)


class CommonArguments(LiteralTextOperator):
    """Has the arguments of :class:`~airflow_provider_raybatch.operators.base.RayOperator`."""

    wait_for_completion: bool = True

    def __init__(
        self,
        *,
        ray_conn_id: str = DEFAULT_CONN_ID,
        ray_cluster: ClusterDefinition | None = None,
        deferrable: bool = DEFERRABLE,
        poll_interval: float | str = 10.0,
        timeout: timedelta | float | str | None = None,
        deadline: datetime | str | None = None,
        cancel_on_kill: bool = True,
        on_stale_state: OnStaleState = "replace",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.ray_conn_id = ray_conn_id
        self.ray_cluster: Any = ray_cluster
        self._cluster_from = leased_cluster_task(ray_cluster)
        self.deferrable = deferrable
        self.poll_interval: Any = poll_interval
        self.timeout: Any = timeout
        self.deadline = deadline
        self.cancel_on_kill = cancel_on_kill
        self.on_stale_state = on_stale_state
        self._cancel_handler = CancelHandler()

    def _check_at_parse(self) -> None:
        """Check what no template decides; the last step of each operator's ``__init__``."""
        unknown = set()
        for name in self.template_fields:
            value = getattr(self, name, None)  # a subclass may set a field of its own later
            if (plain := listed(value)) is not value:
                setattr(self, name, plain)
            if self.depends_on_run(plain):
                unknown.add(name)
        if getattr(self, "_BaseOperator__from_mapped", False):
            return  # the task runs, and execute() raises an error that Airflow doesn't retry
        try:
            refuse_task(self.ray_cluster)
            self._convert(unknown)
            self.check_known(unknown)
        except SpecError as error:
            raise SpecError(f"Task {self.task_id!r}: {error}") from None

    def check_known(self, unknown: Collection[str]) -> None:
        """Check the arguments of this kind of job, except those that are unknown while the DAG is parsed.

        :param unknown: their names.
        :raises SpecError: an argument can't be used.
        """

    def _convert(self, unknown: Collection[str] = ()) -> None:
        """Give the rendered arguments of all operators their types, or raise ``SpecError``."""
        for name, value in vars(self).items():
            if name not in unknown and name[0] != "_" and is_reference(value):
                raise SpecError(
                    f"{name}: it is not a template field, so it takes no XCom or DAG parameter; give the "
                    "value itself, or map the task over it with expand()."
                )
        if "ray_cluster" not in unknown:
            check_returned(self._cluster_from, self.ray_cluster)
        for name in COMMON:
            if name not in unknown:
                given = getattr(self, name)
                if (value := converted(name, given)) is not given:
                    setattr(self, name, value)
        if "ray_conn_id" not in unknown:
            check_one_cluster(self.ray_conn_id, self.ray_cluster)
        if not {"ray_cluster", "poll_interval"} & set(unknown):
            check_lease(self.poll_interval, self.ray_cluster)
