# SPDX-License-Identifier: Apache-2.0
"""Arguments of all operators: what each may be, and its default where a template leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from airflow.sdk.configuration import conf

from airflow_provider_raybatch.coercion import boolean, is_absent, positive_seconds
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.submission import OnStaleState
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.operators.deadline import parse_deadline
from airflow_provider_raybatch.places.choosing import given_cluster

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
    "cancel_on_timeout": (True, boolean),
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
