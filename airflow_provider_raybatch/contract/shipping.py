# SPDX-License-Identifier: Apache-2.0
"""How distributions travel with a job.

Ray puts what it unpacks before everything else on Python's path, where a shipped wheel would hide the
cluster's own, which may be the only one that fits its Python. So shipped ones lie in a folder of that name,
one level deeper, and the job puts this folder last on its path.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_provider_raybatch.contract.layout import WHEELS_FOLDER


def use_shipped_wheels() -> None:
    """Put the shipped distributions last on Python's path, once; nothing happens where none is shipped."""
    folders = [Path(entry) / WHEELS_FOLDER for entry in sys.path]
    sys.path.extend(str(folder) for folder in folders if folder.is_dir() and str(folder) not in sys.path)
