# SPDX-License-Identifier: Apache-2.0
"""Ray's own lines in a driver's log: those that say nothing of the job stay in Ray's log alone."""

from __future__ import annotations

import re

from airflow_provider_raybatch.contract.text import clean

_CORE = r"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] (?:\(\w+\) )?\w+\.(?:cc|h):\d+:"
_LOGGER = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\t[A-Z]+ \w+\.py:\d+ -- "
_RAYS_OWN = re.compile(rf"(?:\(\w+(?:,? [^)]*)?\) )?{_CORE}|{_LOGGER}|\(autoscaler \+")

_OF_CORE = r".*\] (?:\(\w+\) )?\w+\.(?:cc|h):\d+: "
_CHATTER = re.compile(
    # The lowest levels, of Ray's core and of what connects a driver.
    r"\[\d{4}-\d\d-\d\d [\d:,]+ [DI] "
    r"|\S+ \S+\tINFO (?:job_manager|packaging|worker)\.py:\d+ -- (?:Runtime env is setting up|Using address "
    r"|Connect(?:ing|ed) to |Pushing file package|Successfully pushed|Creating a file package)"
    # Of Ray Data's own actors: their arguments are lost with the driver, and then the job is over anyway.
    rf"|{_OF_CORE}Actor with class name: 'MapWorker\(.* has constructor arguments in the object store"
    # Of Ray Data's progress, the rows of each operator stay.
    r"|\S+ \S+\tINFO logging_progress\.py:\d+ -- (?:=|Active & requested|  Tasks:|$)"
    r"|\S+ \S+\tINFO streaming_executor\.py:\d+ -- (?:Starting execution|Execution plan) of"
    rf"|{_LOGGER}(?:Progress bars disabled|Progress will be logged)"
    r"|\(autoscaler \+\w+\) Tip: "
)
_TOLD_BY_THE_JOB = re.compile(
    # A batch inference has judged whether the cluster holds it, and tells how many engines are ready.
    rf"{_LOGGER}Cluster resources are not enough"
    r"|\(raylet[^)]*\) .* You can ignore this message"
    r"|Running entrypoint for job \S+: python -m airflow_provider_raybatch\."
)


def for_task_log(line: str, batch: bool) -> str | None:
    """The text for a task's log, marked if it is Ray's own; ``None`` for what tells nothing of the job.

    :param batch: whether it is the log of a batch inference, which tells its own progress.
    """
    text = clean(line)
    if batch and _TOLD_BY_THE_JOB.match(text):
        return None
    if not _RAYS_OWN.match(text):
        return text
    return None if _CHATTER.match(text) else f"Ray: {text}"
