# SPDX-License-Identifier: Apache-2.0
"""From a task instance, as Airflow's API shows it, to its report, as the settings allow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow.configuration import conf

from airflow_provider_raybatch.coercion import is_absent
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.location import checked_folder, split_s3
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.hooks.connection import DEFAULT_CONN_ID
from airflow_provider_raybatch.plugins.finding import TaskOutput, find_report
from airflow_provider_raybatch.plugins.reading import NotShownError, TaskInstance, destination_at, keys_of

SECTION = "raybatch"


def report_content() -> bool:
    """Whether pages show content of rows: prompts, answers and columns."""
    try:
        return bool(conf.getboolean(SECTION, "report_content", fallback=False))
    except Exception:
        _log.warning("[raybatch] report_content: it is not true or false, so no content of rows is shown.")
        return False


def report_roots() -> list[Path]:
    """Folders of this machine below which reports are read, without links; none by default."""
    given = conf.get(SECTION, "report_roots", fallback="") or ""
    roots = [Path(one.strip()) for one in given.split(",") if one.strip()]
    for root in roots:
        if not root.is_absolute():
            _log.warning("[raybatch] report_roots: %s is not an absolute path, so it is left out.", root)
    return [root.resolve() for root in roots if root.is_absolute()]


_log = logging.getLogger(__name__)
_CUT = "Truncated. You can change this behaviour in"
"""Begins a rendered field that Airflow has cut."""
_MASKED = "***"
_LATER = "DYNAMIC (set during execution)"
"""Stands for an argument that a task's function returns, until it has returned it."""


@dataclass(frozen=True)
class TaskReport:
    """What a page shows of a task instance.

    :param state: Airflow's.
    :param destination: ``None`` where it is not known.
    :param refusal: why there is neither report nor manifest.
    :param hidden: whether content of rows was left out here.
    """

    ti: TaskInstance
    state: str
    destination: str | None = None
    aws_conn_id: str | None = None
    found: TaskOutput = field(default_factory=TaskOutput)
    refusal: NotShownError | None = None
    hidden: bool = False

    @property
    def report(self) -> Report | None:
        """The report, as it may be shown."""
        return self.found.report


def read_task_report(ti: TaskInstance, known: Mapping[str, Any]) -> TaskReport:
    """Find and read the report.

    :param known: the task instance as Airflow's API shows it to the caller.
    """
    state = known.get("state")
    of_task = TaskReport(ti, state if isinstance(state, str) and state else "no state")
    fields = known.get("rendered_fields")
    try:
        place = report_place(fields if isinstance(fields, Mapping) else {})
        of_task = replace(of_task, destination=place.destination, aws_conn_id=place.aws_conn_id)
        return _shown(replace(of_task, found=_found(ti, place)))
    except NotShownError as refusal:
        return replace(of_task, refusal=refusal)
    except RaybatchError as error:
        _log.warning("%s of run %s has no report here: %s", ti.task_id, ti.run_id, error)
        return replace(of_task, refusal=NotShownError(_UNUSABLE, 502))
    except Exception:
        _log.exception("%s of run %s has no report here", ti.task_id, ti.run_id)
        return replace(of_task, refusal=NotShownError(_UNUSABLE, 500))


_UNUSABLE = "The report can't be read; the log of Airflow's API server says why."


def _found(ti: TaskInstance, place: ReportPlace) -> TaskOutput:
    destination = destination_at(place.destination, _credentials(place), report_roots())
    found = find_report(destination, keys_of(ti, place.ray_conn_id))
    if found.manifest is None and found.report is None:
        raise NotShownError("There is no report in the destination that names this task and this run.")
    return found


def _credentials(place: ReportPlace) -> AwsCredentials | None:
    if split_s3(place.destination) is None or is_absent(place.aws_conn_id):
        return None
    from airflow_provider_raybatch.hooks.credentials import aws_credentials

    try:
        return aws_credentials(str(place.aws_conn_id))
    except Exception as error:  # its sentence may have what the connection has
        _log.warning("The connection %r can't be used: %s", place.aws_conn_id, error)
        raise NotShownError(
            f"The connection {place.aws_conn_id!r} of the task can't be used by Airflow's API server, whose "
            "log says why.",
            502,
        ) from error


def _shown(of_task: TaskReport) -> TaskReport:
    report = of_task.report
    if report is None or report_content():
        return of_task
    return replace(
        of_task, found=replace(of_task.found, report=report.without_content()), hidden=report.content
    )


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
    destination = _field(fields, "destination")
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
    return ReportPlace(
        folder, _field(fields, "aws_conn_id"), _field(fields, "ray_conn_id") or DEFAULT_CONN_ID
    )


def _field(fields: Mapping[str, Any], name: str) -> str | None:
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
