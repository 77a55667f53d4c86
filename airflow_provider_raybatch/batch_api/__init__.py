# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Batch API on Airflow's API server, and DAGs that answer its batches. The core never imports it.

`store/` has files and batches as they are kept, `server/` the routes of clients, `dags/` what runs a batch.
It plugs in at two points: `plugin` gives Airflow's API server routes, a page and a link, and `dags` has the
operators. The job's side of a batch is in `job/monitor/served_batch`.
"""
