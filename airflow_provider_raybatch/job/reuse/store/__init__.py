# SPDX-License-Identifier: Apache-2.0
"""A response store: what was paid for once is taken from here when the same is asked again."""

from airflow_provider_raybatch.job.reuse.store.index import Hits
from airflow_provider_raybatch.job.reuse.store.size import StoreReport
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore

__all__ = ["Hits", "ResponseStore", "StoreReport"]
