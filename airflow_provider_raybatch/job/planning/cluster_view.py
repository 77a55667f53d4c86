# SPDX-License-Identifier: Apache-2.0
"""The cluster as the driver sees it: nodes and their types, what its autoscaler may add, versions."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from airflow_provider_raybatch.contract.events import Phase
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.job.planning import autoscaler, fit
from airflow_provider_raybatch.job.planning.node_groups import (
    ACCELERATOR,
    Resources,
    accelerator_types,
    bundles,
    request,
    times,
)
from airflow_provider_raybatch.job.planning.plan import ClusterView, Plan

_OLDEST_RAY = (2, 56)
_POLL = 2.0
_ANSWER_TIMEOUT = 60.0
_BOUNDS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def view() -> ClusterView:
    """The nodes that are alive, and what the autoscaler may add."""
    return ClusterView(_nodes(), autoscaler.limits())


def gpu_node(accelerator_type: str | None) -> str | None:
    """Id of a node with a GPU of this type; ``None`` while there is none."""
    return next(iter(gpu_nodes(accelerator_type)), None)


def gpu_nodes(accelerator_type: str | None) -> list[str]:
    """Ids of the nodes with a GPU of this type."""
    wanted = ["GPU", *([ACCELERATOR + accelerator_type] if accelerator_type else [])]
    nodes = (node for node in ray.nodes() if node["Alive"])
    return [n["NodeID"] for n in nodes if all(n["Resources"].get(name, 0) > 0 for name in wanted)]


def has_one_node() -> bool:
    """Whether the cluster has one node, so no other one can have files that this one lacks."""
    return len([node for node in ray.nodes() if node["Alive"]]) == 1


def has_idle(plan: Plan) -> bool:
    """Whether the CPUs and GPUs of a replica are idle now, if perhaps on several nodes."""
    idle = ray.available_resources()
    return bool(idle.get("CPU", 0) >= plan.cpus and idle.get("GPU", 0) >= plan.gpus)


def idle_replicas(plan: Plan) -> int:
    """How many replicas with GPUs find room now; 0 where idle GPUs may be of another type."""
    kind = plan.accelerator_type
    nodes = [node for node in _nodes() if node.get("GPU")]
    if not plan.gpus or (kind and not all(ACCELERATOR + kind in node for node in nodes)):
        return 0
    idle = ray.available_resources()
    rooms = [times(idle.get("GPU", 0.0), plan.gpus, "GPU")]
    rooms += [times(idle.get("CPU", 0.0), plan.cpus, "CPU")] if plan.cpus else []
    return min(plan.replicas, *rooms)


def most_memory() -> int | None:
    """Bytes of the node that has most, swap included; ``None`` if one does not tell.

    Each node is asked: Ray counts the memory that was free when it started, or what a user wrote.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    task = ray.remote(_memory_here)
    asked = [
        task.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote()
        for node in nodes
    ]
    try:
        return max(ray.get(asked, timeout=_ANSWER_TIMEOUT), default=None)
    except ray.exceptions.RayError:  # a node has left, or is too busy
        return None


def _memory_here() -> int:
    """What this node's processes may use at most: all there is, or less where a control group bounds it."""
    sizes = dict.fromkeys(("MemTotal", "SwapTotal"), 0)
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        if name in sizes:
            sizes[name] = int(amount.split()[0]) * 1024
    bounds = [sizes["MemTotal"]]
    for file in _BOUNDS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            bounds.append(int(Path(file).read_text()))
    return min(bounds) + sizes["SwapTotal"]


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


def refuse_never(plan: Plan, cluster: ClusterView, seconds: float) -> fit.Fit:
    """Whether the cluster holds the plan, now or within `seconds`.

    :raises PreflightError: it never can.
    """
    verdict = fit.assess(plan, cluster, cluster.autoscaler is not None or seconds > 0)
    if verdict.verdict == "never":
        raise PreflightError(verdict.sentence, FailureClass.UNSCHEDULABLE)
    return verdict


def wait_for(
    plan: Plan,
    cluster_wait: float | None,
    held_before: bool,
    emit: Callable[[Phase], None],
    held: contextlib.ExitStack,
    check: Callable[[], None] = lambda: None,
) -> ClusterView:
    """Wait until the cluster can hold the plan.

    :param cluster_wait: see :func:`~airflow_provider_raybatch.job.planning.fit.longest_wait`, also for
        `held_before`.
    :param held: its end withdraws the request to the autoscaler, which would outlive the job and keep its
        nodes. End it when replicas hold them: the first node may have been idle for so long meanwhile that
        the autoscaler would take it at once.
    :param check: called before each pause; raises to end the wait.
    :raises PreflightError: it never can, or did not in time.
    """
    began, announced = time.monotonic(), False
    cluster = view()
    seconds = fit.longest_wait(cluster_wait, cluster.autoscaler is not None, held_before)
    while True:
        verdict = refuse_never(plan, cluster, seconds)
        if verdict.verdict == "fits":
            return cluster
        if not announced:
            emit(Phase(phase="waiting", message=verdict.sentence))
            announced = True
            held.callback(_request, [])
            _request(_bundles(plan, cluster))
        if time.monotonic() - began > seconds:
            raise PreflightError(
                f"cluster_wait: {seconds:g} s are over and {verdict.situation}; raise cluster_wait, ask "
                "for fewer replicas or smaller ones, or add nodes or quota.",
                FailureClass.STALLED,
            )
        check()
        time.sleep(_POLL)
        cluster = replace(cluster, nodes=_nodes())


def _nodes() -> tuple[Resources, ...]:
    return tuple(dict(node["Resources"]) for node in ray.nodes() if node["Alive"])


def _request(bundles: list[dict[str, float]]) -> None:
    """Replace the request to the autoscaler, which otherwise acts when the first replica is pending."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def _bundles(plan: Plan, cluster: ClusterView) -> list[Resources]:
    """The bundles to request: a replica, or each of its GPUs if it may span nodes.

    The type of accelerator is in them only if a group names it: an autoscaler adds no node for a resource
    that no group names, though nodes may have it once they run.
    """
    accelerator = f"{ACCELERATOR}{plan.accelerator_type}"
    kind = {accelerator: 0.001} if cluster.autoscaler and cluster.autoscaler.names(accelerator) else {}
    if not plan.spans_nodes:
        bundle = {"CPU": plan.cpus, "GPU": plan.gpus} if plan.gpus else {"CPU": plan.cpus}
        return [bundle | kind] * plan.replicas
    return [one | kind for one in bundles(request(plan.cpus, plan.gpus, None))] * plan.replicas


_LABEL = "ray.io/accelerator-type"


class GpuTypes:
    """Looks up each node once; a node's type does not change, and is known after its end.

    :param asked: `accelerator_type` of the job.
    :param priced: types that have a price of their own.
    """

    def __init__(self, asked: str | None = None, priced: Collection[str] = ()) -> None:
        self._asked, self._priced = asked, priced
        self._known: dict[str, str] = {}

    def __call__(self, node: str) -> str:
        """The type of the node with this id, by default the one that was asked for; ``""`` if none was."""
        if node not in self._known:
            self.look()
        return self._known.setdefault(node, self._asked or "")

    def look(self) -> set[str]:
        """Look up all nodes.

        :returns: the types of those that are alive and have GPUs.
        """
        nodes = ray.nodes()
        alive = [node for node in nodes if node["Alive"]]
        self._known |= self._types_of(alive)
        # Of one that has died, only the labels are left.
        dead = self._types_of(node for node in nodes if not node["Alive"])
        self._known = {node: kind for node, kind in dead.items() if kind} | self._known
        return {self._known[node["NodeID"]] for node in alive if node["Resources"].get("GPU")}

    def _types_of(self, nodes: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        return {node["NodeID"]: type_of(node, self._asked, self._priced) for node in nodes}


def type_of(node: Mapping[str, Any], asked: str | None, priced: Collection[str]) -> str:
    """The type by which a node's GPUs are billed; ``""`` where it is not known.

    A node may have several names, such as "A100" and "A100-40G": one with a price counts first, then the
    one that the job asked for, then the longer one.

    :param node: as Ray describes it.
    """
    names = {name.removeprefix(ACCELERATOR) for name in node["Resources"] if name.startswith(ACCELERATOR)}
    names |= {str(label) for label in [node.get("Labels", {}).get(_LABEL)] if label}
    with_price: list[str] = sorted(names.intersection(priced), key=lambda name: (-len(name), name))
    if with_price:
        return with_price[0]
    if asked in names:
        return str(asked)
    return accelerator_types({ACCELERATOR + name: 1.0 for name in sorted(names)})[0] or ""
