# SPDX-License-Identifier: Apache-2.0
"""What Airflow's UI shows of batch inferences: reports, and the last nights of a task."""
