# SPDX-License-Identifier: Apache-2.0
"""From a task instance, as Airflow's API shows it, to its report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_raybatch.coercion import is_absent
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.location import split_s3
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.plugins.finding import Found, find_report
from airflow_provider_raybatch.plugins.reading import destination_at
from airflow_provider_raybatch.plugins.refusal import NotShownError
from airflow_provider_raybatch.plugins.report_place import ReportPlace, report_place
from airflow_provider_raybatch.plugins.settings import report_content, report_roots
from airflow_provider_raybatch.plugins.task_key import TaskInstance, keys_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
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
    found: Found = field(default_factory=Found)
    refusal: NotShownError | None = None
    hidden: bool = False

    @property
    def report(self) -> Report | None:
        """The report, as it may be shown."""
        return self.found.report


def look_at(ti: TaskInstance, known: Mapping[str, Any]) -> Look:
    """Find and read the report.

    :param known: the task instance as Airflow's API shows it to the caller.
    """
    state = known.get("state")
    look = Look(ti, state if isinstance(state, str) and state else "no state")
    fields = known.get("rendered_fields")
    try:
        place = report_place(fields if isinstance(fields, Mapping) else {})
        look = replace(look, destination=place.destination, aws_conn_id=place.aws_conn_id)
        return _shown(replace(look, found=_found(ti, place)))
    except NotShownError as refusal:
        return replace(look, refusal=refusal)
    except RaybatchError as error:
        _log.warning("%s of run %s has no report here: %s", ti.task_id, ti.run_id, error)
        return replace(look, refusal=NotShownError(_UNUSABLE, 502))
    except Exception:
        _log.exception("%s of run %s has no report here", ti.task_id, ti.run_id)
        return replace(look, refusal=NotShownError(_UNUSABLE, 500))


_UNUSABLE = "The report can't be read; the log of Airflow's API server says why."


def _found(ti: TaskInstance, place: ReportPlace) -> Found:
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


def _shown(look: Look) -> Look:
    report = look.report
    if report is None or report_content():
        return look
    return replace(look, found=replace(look.found, report=report.without_content()), hidden=report.content)
