# SPDX-License-Identifier: Apache-2.0
"""Imported once before all processes of tasks, which are forked from there: imports take Airflow seconds."""

from __future__ import annotations

import importlib
import pkgutil

import airflow.sdk.execution_time.supervisor
import kubernetes_asyncio.client

import airflow_provider_raybatch
from tests.chaos.kubernetes import processes, rounds

__all__ = ["airflow", "kubernetes_asyncio", "processes", "rounds"]

for _room in ("cluster", "contract", "hooks", "operators", "places", "triggers"):
    for _path in airflow_provider_raybatch.__path__:
        _name = f"airflow_provider_raybatch.{_room}."
        for _found in pkgutil.walk_packages([f"{_path}/{_room}"], _name):
            importlib.import_module(_found.name)
