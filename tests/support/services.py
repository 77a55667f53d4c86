# SPDX-License-Identifier: Apache-2.0
"""The live objects of a job, for tests of single phases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.monitor.money import Money
from airflow_provider_raybatch.job.preflight.checked_job import Services, journal_of


def services_of(job: Any, emit: Callable[[Any], None] = lambda _: None, **given: Any) -> Services:
    """Return those of a job's spec; `given` ones replace real ones."""
    real = {"journal": journal_of(job, job.submission, Secrets()), "money": Money(job)}
    return Services(emit, Secrets(), **{**real, **given})
