# SPDX-License-Identifier: Apache-2.0
"""Links from a task in Airflow's UI to the Ray dashboard."""
