# SPDX-License-Identifier: Apache-2.0
"""Clusters of several shapes, and plans for them."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.job.planning.node_groups import AutoscalerLimits, NodeGroup
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan, make
from tests.support.specs import spec

LAPTOP = ClusterView(({"CPU": 2.0},))
H200 = {"CPU": 16.0, "GPU": 1.0, "accelerator_type:H200": 1.0}
DGX = {"CPU": 128.0, "GPU": 8.0, "accelerator_type:H100": 1.0}
HEAD = {"CPU": 8.0, "node:__internal_head__": 1.0}
SMALL = {"CPU": 4.0, "GPU": 1.0}
OVER_NODES = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}


def autoscaled(
    *nodes: dict[str, float], groups: list[tuple[dict[str, float], int]], **limits: Any
) -> ClusterView:
    """Return a cluster of existing nodes and of groups with a maximum number of nodes."""
    named = (NodeGroup(f"g{number}", node, most) for number, (node, most) in enumerate(groups))
    return ClusterView(nodes, AutoscalerLimits(tuple(named), **limits))


def plan(
    cluster: ClusterView, rows: int = 100_000, sampling: dict[str, Any] | None = None, **engine: Any
) -> Plan:
    return make(spec(**{"engine": "vllm", **engine}, sampling=sampling or {}), rows, cluster)
