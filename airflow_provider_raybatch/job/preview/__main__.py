# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job.preview spec.json preview.json``: report, and write nothing."""

import os
import sys

from airflow_provider_raybatch.job.control.interpreter import run_where_ray_is

run_where_ray_is("airflow_provider_raybatch.job.preview")

from airflow_provider_raybatch.job.preview.main import main  # noqa: E402  # this one needs Ray

code = main(sys.argv[1:])
# As in the job's own entrypoint.
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
