# SPDX-License-Identifier: Apache-2.0
"""Where the report of a task instance lies, by its rendered fields, which only its own task writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.coercion import is_absent
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.location import checked_folder
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.plugins.refusal import NotShownError

_CUT = "Truncated. You can change this behaviour in"
"""Begins a rendered field that Airflow has cut."""
_MASKED = "***"
_LATER = "DYNAMIC (set during execution)"
"""Stands for an argument that a task's function returns, until it has returned it."""


@dataclass(frozen=True)
class ReportPlace:
    """Where a task instance writes, and by which connections.

    :param aws_conn_id: ``None`` for the API server's own identity.
    :param ray_conn_id: its namespace is in the keys of tasks.
    """

    destination: str
    aws_conn_id: str | None = None
    ray_conn_id: str = DEFAULT_CONN_ID


def report_place(fields: Mapping[str, Any]) -> ReportPlace:
    """Where the report lies.

    :param fields: the task instance's rendered fields, as Airflow keeps them.
    :raises NotShownError: they don't tell.
    """
    if not fields:
        raise NotShownError(
            "Airflow keeps no rendered arguments of this task instance: it has not started, or it is older "
            "than [core] num_dag_runs_to_retain_rendered_fields; only its numbers are shown, among the "
            "task's last nights."
        )
    destination = _text(fields, "destination")
    if destination is None:
        raise NotShownError("This task has no destination, so it is not a batch inference and has no report.")
    if destination == _LATER:
        raise NotShownError("The destination is not known yet: the task's function has not returned it.")
    try:
        folder = checked_folder(destination)
    except ValueError:  # its sentence is for the machine that runs the task
        raise NotShownError(
            "The task's destination, among its rendered arguments, is not read here: it must be an absolute "
            "path or s3://bucket/key."
        ) from None
    return ReportPlace(folder, _text(fields, "aws_conn_id"), _text(fields, "ray_conn_id") or DEFAULT_CONN_ID)


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if is_absent(value):
        return None
    if not isinstance(value, str):
        raise NotShownError(f"{name}: Airflow keeps it as {shown(value)}, which is not text.")
    if value.startswith(_CUT):
        raise NotShownError(
            f"{name}: Airflow has cut it; raise [core] max_templated_field_length above its length."
        )
    if _MASKED in value:
        # Without it the page would be read elsewhere, or by another identity.
        raise NotShownError(
            f"{name}: Airflow has masked a part of it, which equals a secret; use a value without secrets."
        )
    return value
