# SPDX-License-Identifier: Apache-2.0
"""A fake Jobs API, and a real Airflow in the test run's own folder."""

from __future__ import annotations

from tests.support.airflow_tasks import airflow_db, dag_test, installation, ray  # noqa: F401 - fixtures
