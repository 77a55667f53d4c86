# SPDX-License-Identifier: Apache-2.0
"""The DAGs that answer batches of the Batch API: one line."""

from airflow_provider_raybatch.serving import serve_batches

serve_batches(sweep=False)
