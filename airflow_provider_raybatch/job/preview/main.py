# SPDX-License-Identifier: Apache-2.0
"""The entrypoint of a preview job: reads spec and request, and writes what it finds as events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.preview import PreviewRequest
from airflow_provider_raybatch.job.entry.process import Driver, drive
from airflow_provider_raybatch.job.preview.ask import ask
from airflow_provider_raybatch.job.preview.inspection import inspect
from airflow_provider_raybatch.job.preview.refusals import Refusals
from airflow_provider_raybatch.job.preview.rows import end_of_preview, preview
from airflow_provider_raybatch.job.preview.sizes import plan_report


def main(arguments: Sequence[str]) -> int:
    """Report as the files in `arguments` say, the spec and the request; return the exit status."""
    spec_file, request_file = arguments

    def work(driver: Driver) -> None:
        report(driver, parse(PreviewRequest, Path(request_file).read_bytes()))

    return drive(spec_file, work)


def report(driver: Driver, request: PreviewRequest) -> None:
    """Emit what is found: the rows, their answers and a :class:`Previewed`, or a :class:`Planned`.

    :raises RaybatchError: nothing could be found out, or the job must end.
    """
    emit, refusals = driver.emit, Refusals(driver.emit)
    inspected = inspect(driver.spec, driver.secrets, refusals, waits=bool(request.ask))
    if request.verb == "plan":
        emit(events.Planned(report=plan_report(inspected, request, refusals)))
        return
    previewed = preview(inspected, request, refusals)
    for row in previewed.rows:
        emit(events.RowPreviewed(row=row))
    if request.ask:
        for answer in ask(inspected, previewed, request.ask, driver, refusals):
            emit(events.RowAnswered(answer=answer))
    emit(events.Previewed(preview=end_of_preview(inspected, previewed, refusals)))
