# SPDX-License-Identifier: Apache-2.0
"""Steps around batch inference: synthetic data, curation and evaluation, in plain Python.

They run in tasks on Airflow's workers. The extra ``workflows`` installs their libraries. `aws_conn_id` is
everywhere the Airflow connection of type ``aws`` for ``s3://``, by default the worker's own identity; without
one, the steps also work in a notebook.

Data flows through three modules: :mod:`~airflow_provider_raybatch.workflows.rows` reads what an operator
returned as Arrow record batches, :mod:`~airflow_provider_raybatch.workflows.sift` passes these through steps,
and :mod:`~airflow_provider_raybatch.workflows.writer` publishes the kept and the dropped rows. `answers` and
`raw_documents` make the rows that steps check. The steps are in `filters` and `duplicates`.
`scores`, `statistics` and `pairwise` measure, and `card` and `comparison` report. `prompts` makes prompts and
sampling for a DAG's operators.
"""
