# SPDX-License-Identifier: Apache-2.0
"""The entrypoint of a preview job: reads spec and request, and writes what it finds as events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.preview import PreviewRequest
from airflow_provider_raybatch.job.control.process import Driver, drive
from airflow_provider_raybatch.job.preview.ask import ask
from airflow_provider_raybatch.job.preview.inspection import Refusals, inspect
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
    facts = inspect(driver, refusals, waits=bool(request.ask))
    if request.verb == "plan":
        emit(events.Planned(report=plan_report(facts, request, refusals)))
        return
    previewed = preview(facts, request, refusals)
    for row in previewed.rows:
        emit(events.RowPreviewed(row=row))
    if request.ask:
        for answer in ask(facts, previewed, request.ask, driver, refusals):
            emit(events.RowAnswered(answer=answer))
    emit(events.Previewed(preview=end_of_preview(facts, previewed, refusals)))
