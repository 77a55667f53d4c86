# SPDX-License-Identifier: Apache-2.0
"""The entrypoint of a job: reads the spec, writes events, and ends with a result or a failure."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.shown_uri import without_queries
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import write_utf8
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.control.control import Control, EventWriter, orders_for, stop_on_sigterm
from airflow_provider_raybatch.job.driver import run
from airflow_provider_raybatch.job.failures.diagnosis import diagnose


def main(arguments: Sequence[str]) -> int:
    """Run the job of the spec file in `arguments`; return the exit status."""
    writer = EventWriter()
    write_utf8()
    try:
        spec = parse(BatchInferenceSpec, Path(arguments[0]).read_bytes())
        if spec.submission is None:
            raise SpecError(
                "submission: it is missing from the spec, so the job can't run; let the operator submit it."
            )
        control = Control(spec, writer.emit)
        with control.watching():
            ray.init(log_to_driver=False, logging_level="warning")
            package = credentials.fetch(spec.submission.secrets_package)
            if package.key is not None:
                writer.key = package.key
                control.listen(orders_for(package.key))
            stop_on_sigterm(control)
            run(spec, spec.submission, writer.emit, package.secrets(), control)
    except BaseException as error:
        failure_class, sentence = diagnose(error)
        if failure_class is FailureClass.INTERNAL:
            # Only here the traceback helps more than the message.
            print(without_queries(traceback.format_exc()))
        writer.emit(events.Failed(failure_class=failure_class, message=without_queries(sentence)))
        return 1
    return 0
