# SPDX-License-Identifier: Apache-2.0
"""A fake Jobs API behind the connection ``ray_default``."""

from __future__ import annotations

from tests.support.airflow_tasks import installation, ray  # noqa: F401 - fixtures
