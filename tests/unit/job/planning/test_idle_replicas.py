# SPDX-License-Identifier: Apache-2.0
"""How many replicas get their GPUs as soon as they are started."""

from __future__ import annotations

from dataclasses import replace

import pytest
import ray

from airflow_provider_raybatch.job.planning.cluster_view import idle_replicas
from airflow_provider_raybatch.job.planning.plan import Plan

PLAN = Plan(4, 1.0, 2, None, 10, 2, {})
H100 = {"CPU": 8.0, "GPU": 8.0, "accelerator_type:H100": 1.0}


@pytest.mark.parametrize(
    ("plan", "idle", "nodes", "found"),
    [
        (PLAN, {"CPU": 8.0, "GPU": 8.0}, [H100], 4),
        (PLAN, {"CPU": 8.0, "GPU": 5.0}, [H100], 2),
        (PLAN, {"CPU": 1.0, "GPU": 8.0}, [H100], 1),
        (PLAN, {"CPU": 8.0}, [H100], 0),
        (replace(PLAN, replicas=1), {"CPU": 8.0, "GPU": 8.0}, [H100], 1),
        (replace(PLAN, gpus=0), {"CPU": 8.0, "GPU": 8.0}, [H100], 0),
        (replace(PLAN, cpus=0.0), {"GPU": 4.0}, [H100], 2),
        (replace(PLAN, accelerator_type="H100"), {"CPU": 8.0, "GPU": 8.0}, [H100, {"CPU": 4.0}], 4),
        (replace(PLAN, accelerator_type="H100"), {"CPU": 8.0, "GPU": 9.0}, [H100, {"GPU": 1.0}], 0),
    ],
)
def test_replicas_that_find_room(
    monkeypatch: pytest.MonkeyPatch,
    plan: Plan,
    idle: dict[str, float],
    nodes: list[dict[str, float]],
    found: int,
) -> None:
    monkeypatch.setattr(ray, "available_resources", lambda: idle)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": one} for one in nodes])
    assert idle_replicas(plan) == found
