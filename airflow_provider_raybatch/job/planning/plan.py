# SPDX-License-Identifier: Apache-2.0
"""Every size of a job, derived from data, model and cluster, each with its reason. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.planning.node_groups import (
    AutoscalerLimits,
    Resources,
    accelerator_types,
    copies,
    gpus_in_words,
    replicas_on,
    request,
    times,
)
from airflow_provider_raybatch.job.row import Request

_GPU_SEQUENCES, _CPU_SEQUENCES = 1024, 256
"""`max_num_seqs` as vLLM's LLM() takes it on a large GPU (an H200, vLLM 0.26) and on a CPU."""
_IN_FLIGHT_FACTOR = 4
_SHORT_RESPONSE = 64
_SHORT_CHUNK, _LONG_CHUNK = 512, 128
_CHUNKS_PER_REPLICA = 8
_LARGEST_CHUNK, _MOST_CHUNKS = 4096, 20_000
_FEWEST_ROWS = 8
_ROWS_FOR_A_NODE = 1024
"""Rows of a replica that are worth a new node, whose start takes minutes and is paid for."""


@dataclass(frozen=True)
class Plan:
    """What runs where, and how much at once.

    :param cpus: CPUs each replica reserves.
    :param gpus: GPUs each replica reserves, all on one node unless `spans_nodes`; below 1 a share of one GPU.
    :param rows_per_chunk: rows that are rendered and tokenised together.
    :param rows_in_engine: rows that are in a replica's engine at once.
    :param grows: whether `rows_in_engine` may grow to what the engine answers in a second.
    :param chunks_in_flight: chunks that Ray's own processor works on at once.
    :param reasons: the reason of each value, by name.
    :param spans_nodes: whether a replica's GPUs may lie on several nodes (vLLM's Ray executor).
    :param fewest_replicas: how many must have room before the job starts, and stay while rows are left. The
        others join when their nodes come, and leave when no rows are left for them. ``None`` for all.
    """

    replicas: int
    cpus: float
    gpus: float
    accelerator_type: str | None
    rows_per_chunk: int
    chunks_in_flight: int
    reasons: dict[str, str]
    spans_nodes: bool = False
    fewest_replicas: int | None = None
    rows_in_engine: int = 1
    grows: bool = False

    @property
    def fewest(self) -> int:
        """See `fewest_replicas`."""
        return self.replicas if self.fewest_replicas is None else self.fewest_replicas

    @property
    def number_of_replicas(self) -> str:
        """``4``, or ``2 to 8``."""
        return str(self.replicas) if self.fewest == self.replicas else f"{self.fewest} to {self.replicas}"

    def shown(self) -> dict[str, object]:
        """Each value with its reason, for the log and the manifest."""
        values = {
            "replicas": self.replicas,
            "cpus_per_replica": self.cpus,
            "gpus_per_replica": self.gpus,
            "rows_per_chunk": self.rows_per_chunk,
            "rows_in_engine": self.rows_in_engine,
            "chunks_in_flight": self.chunks_in_flight,
        }
        return {
            name: {"value": value, "reason": self.reasons.get(name, "")} for name, value in values.items()
        }

    def sentence(self, rows: int) -> str:
        """What is about to start for so many rows, for the log."""
        gpus = f" with {gpus_in_words(self.gpus)} each" if self.gpus else " on CPU"
        gpus += ", over several nodes" if self.spans_nodes else ""
        return (
            f"starting {self.number_of_replicas} {'replica' if self.replicas == 1 else 'replicas'}{gpus} "
            f"({self.reasons['replicas']}) for {count_of(rows, 'row')}; "
            f"{count_of(self.rows_per_chunk, 'row')} a chunk ({self.reasons['rows_per_chunk']}), "
            f"{count_of(self.rows_in_engine, 'row')} in an engine at a time"
        )


@dataclass(frozen=True)
class ClusterView:
    """What a cluster has.

    :param nodes: resource totals per node, as Ray names them.
    :param autoscaler: what the autoscaler may add; ``None`` if unknown or without one.
    """

    nodes: tuple[Resources, ...]
    autoscaler: AutoscalerLimits | None = None

    def holds(self, asked: Resources, spans_nodes: bool) -> int:
        """Replicas that fit on the nodes."""
        return replicas_on([(node, 1) for node in self.nodes], asked, spans_nodes)

    @property
    def has_gpus(self) -> bool:
        """Whether a node has a GPU, or the autoscaler may add one."""
        groups = self.autoscaler is not None and self.autoscaler.names("GPU")
        return groups or any(node.get("GPU") for node in self.nodes)

    def gpus_of_a_node(self, accelerator_type: str | None) -> int:
        """GPUs, of this type, of the largest node, including those that the autoscaler may add."""
        gpu = {name: amount for name, amount in request(1.0, 1.0, accelerator_type).items() if name != "CPU"}
        groups = self.autoscaler.groups if self.autoscaler else ()
        nodes = [*self.nodes, *(group.node_for(gpu) for group in groups if group.max_nodes)]
        return max((copies(node, gpu) for node in nodes), default=0)

    def gpu_types(self, accelerator_type: str | None) -> set[str | None]:
        """Types of the GPUs that a replica may get, now or later; ``None`` stands for one without a name.

        :param accelerator_type: of the job, which takes precedence.
        """
        if accelerator_type is not None:
            return {accelerator_type}
        return {name for node in self.gpu_nodes for name in accelerator_types(node)}

    @property
    def gpu_nodes(self) -> list[Resources]:
        """Those that have GPUs, and one of each group that the autoscaler may add."""
        groups = self.autoscaler.groups if self.autoscaler else ()
        nodes = [*self.nodes, *(group.node for group in groups if group.max_nodes)]
        return [node for node in nodes if node.get("GPU")]

    def may_hold(self, asked: Resources, spans_nodes: bool) -> int:
        """Replicas that fit when the autoscaler has added all it may; 0 if that is unknown."""
        if self.autoscaler is None:
            return 0
        heads = [node for node in self.nodes if "node:__internal_head__" in node]
        return self.autoscaler.replicas(asked, spans_nodes, heads)


def longest_response(spec: BatchInferenceSpec, requests: Sequence[Request]) -> int | None:
    """The most output tokens of a response to the first rows; ``None`` if one may fill the context.

    A row with another value than a number fails later, alone.
    """
    limits = [{**spec.sampling, **request.sampling}.get("max_tokens") for request in requests]
    known = [limit for limit in limits if isinstance(limit, int)]
    return max(known, default=None) if len(known) == len(limits) else None


def make(spec: BatchInferenceSpec, rows: int, cluster: ClusterView, longest: int | None = None) -> Plan:
    """The plan.

    :param rows: rows still to be done.
    :param longest: see :func:`longest_response`; by default the job's own limit.
    """
    gpus, why_gpus = _gpus(spec, cluster)
    spans_nodes, why_spans = _spans_nodes(spec, cluster, gpus)
    cpus, why_cpus = _cpus(spec, cluster, 1 if spans_nodes else gpus)
    asked = request(cpus, gpus, spec.accelerator_type)
    replicas, fewest, why_replicas = _replicas(spec, rows, cluster, asked, spans_nodes)
    chunk, why_chunk = _rows_per_chunk(spec, rows, replicas, longest or spec.sampling.get("max_tokens"))
    in_flight, why_in_flight = _chunks_in_flight(spec, gpus, chunk)
    in_engine, why_in_engine = _rows_in_engine(spec, gpus)
    return Plan(
        replicas,
        cpus,
        gpus,
        spec.accelerator_type,
        chunk,
        in_flight,
        {
            "replicas": why_replicas,
            "cpus_per_replica": why_cpus,
            "gpus_per_replica": why_gpus + why_spans,
            "rows_per_chunk": why_chunk,
            "rows_in_engine": why_in_engine,
            "chunks_in_flight": why_in_flight,
        },
        spans_nodes,
        fewest,
        in_engine,
        grows=spec.rows_in_flight is None,
    )


def _spans_nodes(spec: BatchInferenceSpec, cluster: ClusterView, gpus: float) -> tuple[bool, str]:
    """Whether vLLM's Ray executor is asked for, or needed because no node has enough GPUs; and why."""
    executor = spec.engine_args.get("distributed_executor_backend")
    if executor is not None or gpus < 2 or spec.engine == "ray_data_llm":
        return gpus > 1 and executor == "ray", ""
    largest = cluster.gpus_of_a_node(spec.accelerator_type)
    if not 0 < largest < gpus:
        return False, ""
    return True, f", over several nodes with vLLM's Ray executor, since none has over {largest}"


def _gpus(spec: BatchInferenceSpec, cluster: ClusterView) -> tuple[float, str]:
    if spec.num_gpus is not None and spec.num_gpus < 1:
        beside = times(1.0, spec.num_gpus, "GPU") - 1
        others = (
            "no other fits" if not beside else f"{beside} more of its size {'fits' if beside == 1 else 'fit'}"
        )
        return spec.num_gpus, f"set by num_gpus; {others} beside it on a GPU"
    if spec.engine == "echo" and not spec.has_parallel_sizes:
        return 0, "the echo engine has no model"
    if (
        not cluster.has_gpus
        and spec.accelerator_type is None
        and spec.gpus_per_replica == 1
        and spec.num_gpus is None
    ):
        return 0, "the cluster has no GPU, so vLLM runs on CPUs"
    return spec.gpus_per_replica, "the product of vLLM's parallel sizes"


def _cpus(spec: BatchInferenceSpec, cluster: ClusterView, gpus: float) -> tuple[float, str]:
    if spec.num_cpus is not None:
        return spec.num_cpus, "set by num_cpus"
    if gpus:
        groups = cluster.autoscaler.groups if cluster.autoscaler else ()
        nodes = [*cluster.nodes, *(group.node for group in groups)]
        smallest = min((node.get("CPU", 0.0) for node in nodes if node.get("GPU", 0.0) >= gpus), default=1.0)
        per_node = max((times(node.get("GPU", 0.0), gpus, "GPU") for node in nodes), default=1) or 1
        if 0 < smallest < per_node:
            # Rounded down to Ray's ten-thousandths, so that the last replica fits, too.
            share = math.floor(smallest / per_node * 10_000 + 1e-6) / 10_000
            return share, f"a GPU node has only {smallest:g} CPUs for {count_of(per_node, 'replica')}"
    return 1.0, "a replica's own process; tokenising takes what is idle besides"


def _replicas(
    spec: BatchInferenceSpec, rows: int, cluster: ClusterView, asked: Resources, spans_nodes: bool
) -> tuple[int, int | None, str]:
    """How many at most, how many at least (``None`` for all), and why."""
    if isinstance(spec.replicas, int):
        return spec.replicas, None, "set by replicas"
    fits = cluster.holds(asked, spans_nodes)
    useful = max(1, math.ceil(rows / _FEWEST_ROWS))
    if spec.replicas is not None:
        fewest, most = spec.replicas
        chosen = max(fewest, min(most, useful))
        why = (
            f"set by replicas=({fewest}, {most}), the cluster's nodes hold {fits}"
            + (f", the rows feed {useful}" if useful < most else "")
            + (f"; the job starts with {max(fewest, fits)}" if max(fewest, fits) < chosen else "")
        )
        return chosen, fewest, why
    if "GPU" not in asked:
        return 1, None, "one is enough without GPUs: it uses all idle CPUs of its node"
    now = min(fits, useful)
    reach = cluster.may_hold(asked, spans_nodes)
    worth = max(1, math.ceil(rows / _ROWS_FOR_A_NODE))
    later = min(reach, worth)
    if later > now:
        why = (
            f"the cluster's nodes hold {fits}, the autoscaler may reach {reach}"
            + (f", the rows are worth {worth}" if worth < reach else "")
            + f"; the job starts with {max(1, now)}"
        )
        return later, max(1, now), why
    if fits == 0:
        return 1, None, "no node holds a replica yet; one is asked of the autoscaler"
    feeds = f", the rows feed {useful}" if useful < fits else ""
    return now, None, f"the cluster's nodes hold {fits}{feeds}"


def _rows_per_chunk(spec: BatchInferenceSpec, rows: int, replicas: int, longest: Any) -> tuple[int, str]:
    """How many, and why; `longest` is the largest limit of a response, if each has one."""
    if spec.batch_size is not None:
        return spec.batch_size, "set by batch_size"
    short = isinstance(longest, int) and longest <= _SHORT_RESPONSE
    wanted = _SHORT_CHUNK if short else _LONG_CHUNK
    balanced = math.ceil(rows / (replicas * _CHUNKS_PER_REPLICA))
    chunk = max(_FEWEST_ROWS, min(wanted, balanced), min(_LARGEST_CHUNK, math.ceil(rows / _MOST_CHUNKS)))
    if chunk == wanted:
        return chunk, f"{wanted}, as responses are {'short' if short else 'long'}"
    if chunk > wanted:
        return chunk, f"the driver keeps track of at most {_MOST_CHUNKS:,} chunks"
    return chunk, f"{_CHUNKS_PER_REPLICA} chunks a replica, so that none idles at the end"


def _chunks_in_flight(spec: BatchInferenceSpec, gpus: float, chunk: int) -> tuple[int, str]:
    if spec.rows_in_flight is not None:
        return max(1, math.ceil(spec.rows_in_flight / chunk)), "set by rows_in_flight"
    sequences = _sequences(spec, gpus)
    return max(2, math.ceil(_IN_FLIGHT_FACTOR * sequences / chunk)), (
        f"{_IN_FLIGHT_FACTOR} times {count_of(sequences, 'sequence')}, so that chunks that end together "
        "leave no gap"
    )


def _rows_in_engine(spec: BatchInferenceSpec, gpus: float) -> tuple[int, str]:
    if spec.rows_in_flight is not None:
        return spec.rows_in_flight, "set by rows_in_flight"
    sequences = _sequences(spec, gpus)
    return sequences + math.ceil(sequences / 4), (
        f"{sequences} sequences and a quarter more, later what it answers in a second, so that it never "
        "waits, and fewer where few rows with limits of their own are left; the others wait where other "
        "replicas can get them"
    )


def _sequences(spec: BatchInferenceSpec, gpus: float) -> int:
    sequences = spec.engine_args.get("max_num_seqs")
    if isinstance(sequences, int) and sequences >= 1:
        return sequences
    return _GPU_SEQUENCES if gpus else _CPU_SEQUENCES
