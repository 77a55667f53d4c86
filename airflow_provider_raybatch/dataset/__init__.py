# SPDX-License-Identifier: Apache-2.0
"""For the code after a batch inference: its dataset, checked against the manifest.

Works inside and outside of a task. Each way to read needs its own package, and imports it when it is called.
:mod:`~airflow_provider_raybatch.dataset.writer` publishes further datasets, and needs pyarrow.
"""

from __future__ import annotations

from airflow_provider_raybatch.dataset.changes import Changes
from airflow_provider_raybatch.dataset.dataset import Dataset
from airflow_provider_raybatch.dataset.errors import DatasetError, UsageError
from airflow_provider_raybatch.dataset.opening import Result, Rows, open_dataset, s3_credentials

__all__ = [
    "Changes",
    "Dataset",
    "DatasetError",
    "Result",
    "Rows",
    "UsageError",
    "open_dataset",
    "s3_credentials",
]
