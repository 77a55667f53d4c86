# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job spec.json``: the entrypoint of every batch inference job."""

import os
import sys

from airflow_provider_raybatch.job.control.interpreter import run_where_ray_is


def _main() -> int:
    run_where_ray_is("airflow_provider_raybatch.job")
    from airflow_provider_raybatch.job.phases.driver import main  # this one needs Ray

    return main(sys.argv[1:])


code = _main()
# Skips the interpreter's own end, where threads of Ray Data that still run may crash, and Ray would show a
# finished job as failed.
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
