# SPDX-License-Identifier: Apache-2.0
"""The entrypoint of a preview job: reads spec and request, and writes what it finds as events."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Sequence
from pathlib import Path

import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.preview import PreviewRequest
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.shown_uri import without_queries
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import write_utf8
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.control.control import EventWriter
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.preflight.ready import Emit
from airflow_provider_raybatch.job.preview.inspection import inspect, scratch
from airflow_provider_raybatch.job.preview.refusals import Refusals
from airflow_provider_raybatch.job.preview.rows import preview
from airflow_provider_raybatch.job.preview.sizes import plan_report


def main(arguments: Sequence[str]) -> int:
    """Report as the files in `arguments` say, the spec and the request; return the exit status."""
    writer = EventWriter()
    write_utf8()
    try:
        spec = parse(BatchInferenceSpec, Path(arguments[0]).read_bytes())
        request = parse(PreviewRequest, Path(arguments[1]).read_bytes())
        if spec.submission is None:
            raise SpecError("submission: it is missing from the spec; let `raybatch` submit the job.")
        ray.init(log_to_driver=False, logging_level="warning")
        package = credentials.fetch(spec.submission.secrets_package)
        writer.key = package.key
        report(spec, request, package.secrets(), writer.emit)
    except BaseException as error:
        failure_class, sentence = diagnose(error)
        if failure_class is FailureClass.INTERNAL:
            print(without_queries(traceback.format_exc()))
        writer.emit(events.Failed(failure_class=failure_class, message=without_queries(sentence)))
        return 1
    return 0


def report(spec: BatchInferenceSpec, request: PreviewRequest, secrets: Secrets, emit: Emit) -> None:
    """Emit what is found: the rows and a :class:`Previewed`, or a :class:`Planned`.

    :param spec: with its submission: parts of its task's earlier jobs are found by it.
    :raises RaybatchError: nothing could be found out.
    """
    emit(events.Phase(phase="preflight", message="checking source, prompt, model, destination and cluster"))
    refusals = Refusals()
    try:
        inspected = inspect(spec, secrets, refusals)
        if request.verb == "plan":
            emit(events.Planned(report=plan_report(inspected, request, refusals)))
            return
        rows, end = preview(inspected, request, refusals)
    finally:
        shutil.rmtree(scratch(), ignore_errors=True)
    for row in rows:
        emit(events.RowPreviewed(row=row))
    emit(events.Previewed(preview=end))
