# SPDX-License-Identifier: Apache-2.0
"""Airflow's own simple login, with a user who may see some DAGs only, as other auth managers have them."""

from __future__ import annotations

import os
from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class AccessByDag(SimpleAuthManager):
    """``guest`` sees the DAGs that are named in ``RAYBATCH_TEST_GUEST_DAGS``; the others see all."""

    def is_authorized_dag(
        self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None
    ) -> bool:
        is_allowed = super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details
        )
        if user.username != "guest" or details is None or details.id is None:
            return is_allowed
        return is_allowed and details.id in os.environ.get("RAYBATCH_TEST_GUEST_DAGS", "").split()
