# SPDX-License-Identifier: Apache-2.0
"""Distributions that travel with a job: below a folder of their own, which the job puts last on its path.

Ray puts what it unpacks first on Python's path, where a shipped wheel would hide the cluster's own, which may
be the only one that fits its Python.
"""

from __future__ import annotations

import sys
from pathlib import Path

from airflow_provider_raybatch.contract.layout import WHEELS_FOLDER


def use_shipped_wheels() -> None:
    """Put the shipped distributions, if there are any, last on Python's path, once."""
    folders = [Path(entry) / WHEELS_FOLDER for entry in sys.path]
    sys.path.extend(str(folder) for folder in folders if folder.is_dir() and str(folder) not in sys.path)
