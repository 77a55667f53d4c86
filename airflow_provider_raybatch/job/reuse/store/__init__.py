# SPDX-License-Identifier: Apache-2.0
"""The response store: equal requests get their response from here instead of an engine."""

from airflow_provider_raybatch.job.reuse.store.index import StoreHits
from airflow_provider_raybatch.job.reuse.store.size import StoreReport
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore

__all__ = ["ResponseStore", "StoreHits", "StoreReport"]
