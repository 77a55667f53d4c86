# SPDX-License-Identifier: Apache-2.0
"""The process of a driver: it reads its spec, connects to Ray, and turns each end into an exit status."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.contract.text import without_queries, write_utf8
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.control.control import Control, EventWriter, orders_for, stop_on_sigterm
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.failures.public_reasons import traceback_of


@dataclass(frozen=True)
class Driver:
    """What a driver has when it is connected.

    :param emit: writes an event to its log.
    :param control: what ends it early.
    """

    spec: BatchInferenceSpec
    submission: Submission
    secrets: Secrets
    emit: Callable[[events.Event], None]
    control: Control


@cache
def freeze_gc_heap() -> None:
    """Leave what a process has imported out of its garbage collections; the first call counts.

    Each full one would walk half a million objects, which took a fifth of the CPU time of a row. vLLM, Ray
    Serve and Airflow do so in their processes, too.
    """
    gc.freeze()


def drive(spec_file: str, work: Callable[[Driver], object]) -> int:
    """Do `work` in this process; return the exit status.

    What `work` raises becomes the last event. The process ends itself when its followers are gone.
    """
    writer = EventWriter()
    write_utf8()
    shows_rows = True  # what is raised before the spec is read knows no row
    try:
        spec = parse(BatchInferenceSpec, Path(spec_file).read_bytes())
        if spec.submission is None:
            raise SpecError(
                "submission: it is missing from the spec, so the job can't run; let the operator submit it."
            )
        shows_rows = spec.shows_rows
        control = Control(spec, writer.emit)
        with control.watching():
            ray.init(log_to_driver=False, logging_level="warning")
            package = credentials.fetch(spec.submission.secrets_package)
            if package.key is not None:
                writer.sign(package.key)
                control.listen(orders_for(package.key))
            stop_on_sigterm(control)
            freeze_gc_heap()
            work(Driver(spec, spec.submission, package.secrets(), writer.emit, control))
    except BaseException as error:
        failure_class, sentence = diagnose(error, shows_rows=shows_rows)
        if failure_class is FailureClass.INTERNAL:
            # Only here the traceback helps more than the message.
            print(without_queries(traceback_of(error, shows_rows)))
        writer.emit(events.Failed(failure_class=failure_class, message=without_queries(sentence)))
        return 1
    return 0
