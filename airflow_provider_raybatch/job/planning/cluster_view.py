# SPDX-License-Identifier: Apache-2.0
"""The cluster as the driver sees it: nodes, the autoscaler's reach, versions."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import ray

from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.job.planning import fit
from airflow_provider_raybatch.job.planning.plan import Cluster, Plan

_OLDEST_RAY = (2, 56)
_POLL = 2.0


def view() -> Cluster:
    """Resource totals of the nodes that are alive, and the autoscaler's ceiling."""
    nodes = tuple(dict(node["Resources"]) for node in ray.nodes() if node["Alive"])
    return Cluster(nodes, _ceiling())


def gpu_node(accelerator_type: str | None) -> str | None:
    """Id of a node with a GPU, of this type if one is given; ``None`` while there is none."""
    wanted = ["GPU", *([f"accelerator_type:{accelerator_type}"] if accelerator_type else [])]
    nodes = (node for node in ray.nodes() if node["Alive"])
    return next((n["NodeID"] for n in nodes if all(n["Resources"].get(name, 0) > 0 for name in wanted)), None)


def check_versions() -> dict[str, str]:
    """Versions for the manifest.

    :raises PreflightError: Ray is too old.
    """
    found = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if found < _OLDEST_RAY:
        raise PreflightError(f"ray_conn_id: the cluster runs Ray {ray.__version__}; 2.56 or newer is needed.")
    from airflow_provider_raybatch import __version__

    return {
        "airflow_provider_raybatch": __version__,
        "ray": ray.__version__,
        "python": platform.python_version(),
    }


def wait_for(
    plan: Plan, cluster_wait: float | None, held_before: bool, say: Callable[[Phase], None]
) -> Cluster:
    """Return once the cluster can hold the plan.

    :param cluster_wait: see :func:`~airflow_provider_raybatch.job.planning.fit.longest_wait`.
    :param held_before: see :func:`~airflow_provider_raybatch.job.planning.fit.longest_wait`.
    :raises PreflightError: it never can, or did not in time.
    """
    began, told = time.monotonic(), False
    try:
        while True:
            cluster = view()
            autoscales = cluster.ceiling is not None
            seconds = fit.longest_wait(cluster_wait, autoscales, held_before)
            verdict = fit.judge(plan, cluster, autoscales or seconds > 0)
            if verdict.verdict == "fits":
                return cluster
            if verdict.verdict == "never":
                raise PreflightError(verdict.sentence, FailureClass.UNSCHEDULABLE)
            if not told:
                say(Phase(phase="waiting", message=verdict.sentence))
                told = True
                _request(_bundles(plan))
            if time.monotonic() - began > seconds:
                raise PreflightError(
                    f"cluster_wait: {seconds:g} s are over and {verdict.situation}; raise cluster_wait, ask "
                    "for fewer replicas or smaller ones, or add nodes.",
                    FailureClass.STALLED,
                )
            time.sleep(_POLL)
    finally:
        if told:
            # It outlives the job otherwise, and the nodes with it. The replicas themselves hold theirs.
            _request([])


def _ceiling() -> dict[str, float] | None:
    """What the autoscaler may reach at most, ``None`` where there is none or it doesn't tell.

    No public call tells it: this one is what Ray Data and Ray Train ask themselves.
    """
    from ray._private.state import state

    get = getattr(state, "get_max_resources_from_cluster_config", None)
    found = get() if get is not None else None
    return {str(name): float(amount) for name, amount in found.items()} if found else None


def _request(bundles: list[dict[str, float]]) -> None:
    """Ask the autoscaler now, rather than when the first replica is pending; until the next call."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def _bundles(plan: Plan) -> list[dict[str, float]]:
    """What lies on one node each: a replica, or each of its GPUs where it may span several."""
    if not plan.spans_nodes:
        bundle = {"CPU": plan.cpus, "GPU": plan.gpus} if plan.gpus else {"CPU": plan.cpus}
        return [bundle] * plan.replicas
    return [{"CPU": plan.cpus, "GPU": 1.0}, *[{"GPU": 1.0}] * (plan.gpus - 1)] * plan.replicas
