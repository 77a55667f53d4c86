# SPDX-License-Identifier: Apache-2.0
"""The entrypoint of a job: spec in, events out, and an end in every case."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import ray

from airflow_provider_raybatch.contract import events
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.diagnosis import diagnose, without_queries
from airflow_provider_raybatch.job.run import run

_GRACE = 25.0
"""Seconds past the deadline; whoever follows the job gives it 30."""


def main(arguments: Sequence[str]) -> int:
    """Run the job of the spec file named by the one argument; the exit status says whether it delivered."""
    try:
        spec = parse(BatchInferenceSpec, Path(arguments[0]).read_bytes())
        if spec.submission is None:
            raise SpecError("submission: the spec says of no task, so it can't be run.")
        with _deadline(spec.limits.deadline):
            ray.init(log_to_driver=False, logging_level="warning")
            run(spec, spec.submission, say)
    except BaseException as error:
        failure_class, sentence = diagnose(error)
        if failure_class is FailureClass.INTERNAL:
            # The one case in which the traceback is worth more than the sentence.
            traceback.print_exc(file=sys.stdout)
        say(events.Failed(failure_class=failure_class, message=without_queries(sentence)))
        return 1
    return 0


def say(event: events.Event) -> None:
    """Write an event to the driver's log, where the Airflow side reads it."""
    print(events.line(event), flush=True)


@contextlib.contextmanager
def _deadline(deadline: float | None) -> Iterator[None]:
    """End the driver soon after its deadline, whatever it is doing: nobody may be left who would stop it.

    While it generates, it ends by itself at the deadline, and writes what is finished.
    """
    if deadline is None:
        yield
        return
    timer = threading.Timer(max(0.0, deadline - time.time()) + _GRACE, _end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end() -> None:
    message = (
        "timeout: the job's deadline passed; the finished rows are kept, "
        "and an attempt with time left goes on."
    )
    say(events.Failed(failure_class=FailureClass.TIMEOUT, message=message))
    os._exit(1)
