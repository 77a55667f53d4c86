# SPDX-License-Identifier: Apache-2.0
"""The entrypoint of a job: reads the spec, writes events, and ends with a result or a failure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_raybatch.job.driver import run
from airflow_provider_raybatch.job.entry.process import Driver, drive


def main(arguments: Sequence[str]) -> int:
    """Run the job of the spec file in `arguments`; return the exit status."""
    return drive(arguments[0], _run)


def _run(driver: Driver) -> None:
    run(driver.spec, driver.submission, driver.emit, driver.secrets, driver.control)
