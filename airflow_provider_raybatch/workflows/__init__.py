# SPDX-License-Identifier: Apache-2.0
"""Steps around batch inference: synthetic data, curation and evaluation. The core never imports them.

They are plain Python, and run in tasks on Airflow's workers. The extra ``workflows`` installs their
libraries. `aws_conn_id` is everywhere the Airflow connection of type ``aws`` for ``s3://``, by default the
worker's own identity; without one, the steps also work in a notebook.

Data flows through three modules: `Rows` of :mod:`~airflow_provider_raybatch.dataset` reads what an operator
returned as Arrow record batches, :mod:`~airflow_provider_raybatch.workflows.sift` passes these through steps,
and :mod:`~airflow_provider_raybatch.dataset.writer` publishes the kept and the dropped rows. `rows` makes
the rows that steps check, of raw documents and of answers. The steps are in `filters` and `duplicates`.
`scores`, `statistics` and `pairwise` measure, and `card` and `comparison` report. `prompts` makes prompts and
sampling for a DAG's operators.
"""
