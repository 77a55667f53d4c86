# SPDX-License-Identifier: Apache-2.0
"""DAGs that answer batches of the Batch API: one line in a DAG file."""

from airflow_provider_raybatch.batch_api.dags.served_dag import serve_batches

__all__ = ["serve_batches"]
