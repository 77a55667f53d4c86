# SPDX-License-Identifier: Apache-2.0
"""A real API server in this process, as the plugin's pages have one."""

from __future__ import annotations

from tests.support.airflow_server import running_server, server  # noqa: F401 - fixtures
from tests.support.airflow_tasks import airflow_db  # noqa: F401 - a fixture
