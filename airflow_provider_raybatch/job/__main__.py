# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job spec.json``: the entrypoint of every batch inference job."""

import os
import sys

from airflow_provider_raybatch.job.entry.interpreter import run_where_ray_is

run_where_ray_is("airflow_provider_raybatch.job")

from airflow_provider_raybatch.job.entry.main import main  # noqa: E402  # this one needs Ray

code = main(sys.argv[1:])
# Without the interpreter's own end: where replicas were dismissed, threads of Ray Data still run. They crash
# in it, and Ray then shows a job as failed that has delivered. What is left of it ends with this process.
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
