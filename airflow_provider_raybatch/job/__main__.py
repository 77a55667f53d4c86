# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job spec.json``: the entrypoint of every batch inference job."""

import sys

from airflow_provider_raybatch.job.main import main

sys.exit(main(sys.argv[1:]))
