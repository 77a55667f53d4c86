# SPDX-License-Identifier: Apache-2.0
"""A source, read and checked as a job does it before its rows."""

from __future__ import annotations

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.preflight.check import Facts, first_failure
from airflow_provider_raybatch.job.preflight.column_check import COLUMN_CHECKS
from airflow_provider_raybatch.job.preflight.input_check import read_source


def look_at_source(spec: BatchInferenceSpec, credentials: AwsCredentials | None = None) -> Source:
    """Read the source, and check its columns."""
    source = read_source(spec, credentials)
    first_failure(COLUMN_CHECKS, Facts(spec, source))
    return source
