# SPDX-License-Identifier: Apache-2.0
"""Parts that synthetic data, curation and evaluation share: plain Python for tasks around batch inference.

They run in tasks on Airflow's workers. Only `aws_conn_id` needs Airflow, so they work in a notebook, too.
Their libraries are in the extra ``workflows``.

Data flows through three modules: :mod:`~airflow_provider_raybatch.workflows.rows` reads what an operator
returned as Arrow record batches, :mod:`~airflow_provider_raybatch.workflows.sift` passes these through steps,
and :mod:`~airflow_provider_raybatch.workflows.writer` publishes what is kept and what is dropped. The steps
are in `schema_check`, `duplicates` and `filters`. `scores`, `statistics` and `pairwise` measure, `promotion`
decides, `card` and `comparison` report. `prompts` has what a DAG file gives its operators.
"""
