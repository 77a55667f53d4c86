# SPDX-License-Identifier: Apache-2.0
"""Folders on local disks and in S3, and what is tried again when they fail.

Below both sides: jobs read and write through it, and so does code that opens a finished dataset.
"""

from airflow_provider_raybatch.contract.layout import use_shipped_wheels

# On the cluster obstore may be a shipped wheel, and a worker may import this package before the job's.
use_shipped_wheels()
