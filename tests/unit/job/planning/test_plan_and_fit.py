# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning import fit
from airflow_provider_raybatch.job.planning.node_groups import AutoscalerLimits, NodeGroup
from airflow_provider_raybatch.job.planning.plan import Cluster, Plan, make
from tests.support.specs import spec

LAPTOP = Cluster(({"CPU": 2.0},))
H200 = {"CPU": 16.0, "GPU": 1.0, "accelerator_type:H200": 1.0}
DGX = {"CPU": 128.0, "GPU": 8.0, "accelerator_type:H100": 1.0}
HEAD = {"CPU": 8.0, "node:__internal_head__": 1.0}
SMALL = {"CPU": 4.0, "GPU": 1.0}
OVER_NODES = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}


def autoscaled(
    *nodes: dict[str, float], groups: list[tuple[dict[str, float], int]], **limits: Any
) -> Cluster:
    """Return a cluster of existing nodes and of groups with a maximum number of nodes."""
    named = (NodeGroup(f"g{number}", node, most) for number, (node, most) in enumerate(groups))
    return Cluster(nodes, AutoscalerLimits(tuple(named), **limits))


def plan(
    cluster: Cluster, rows: int = 100_000, sampling: dict[str, Any] | None = None, **engine: Any
) -> Plan:
    return make(spec(**{"engine": "vllm", **engine}, sampling=sampling or {}), rows, cluster)


class TestPlan:
    @pytest.mark.parametrize(
        ("cluster", "engine", "replicas", "gpus", "cpus"),
        [
            (LAPTOP, {}, 1, 0, 1.0),
            (LAPTOP, {"engine": "echo"}, 1, 0, 1.0),
            (LAPTOP, {"num_cpus": 0.5, "replicas": 4}, 4, 0, 0.5),
            (LAPTOP, {"engine_args": {"tensor_parallel_size": 2}}, 1, 2, 1.0),
            (LAPTOP, {"accelerator_type": "H200"}, 1, 1, 1.0),
            (Cluster((HEAD, H200)), {}, 1, 1, 1.0),
            (Cluster((HEAD, H200)), {"engine": "echo"}, 1, 0, 1.0),
            # Unless it is to take the places that vLLM would.
            (
                Cluster((HEAD, H200, H200)),
                {"engine": "echo", "engine_args": {"tensor_parallel_size": 1}},
                2,
                1,
                1.0,
            ),
            (Cluster((HEAD, DGX)), {}, 8, 1, 1.0),
            (Cluster((HEAD, DGX, DGX)), {"engine_args": {"tensor_parallel_size": 4}}, 4, 4, 1.0),
            (
                Cluster((HEAD, DGX)),
                {"engine_args": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}},
                2,
                4,
                1.0,
            ),
            (Cluster((HEAD, DGX, H200)), {"accelerator_type": "H200"}, 1, 1, 1.0),
            (Cluster((HEAD, DGX, H200)), {"replicas": 3}, 3, 1, 1.0),
            # A node with fewer CPUs than GPUs.
            (Cluster((HEAD, {"CPU": 4.0, "GPU": 8.0})), {}, 8, 1, 0.5),
            # No GPU yet, but an autoscaler that may add some.
            (autoscaled(HEAD, groups=[(SMALL, 8)]), {}, 8, 1, 1.0),
            (autoscaled(HEAD, groups=[({"CPU": 4.0, "GPU": 8.0}, 2)]), {}, 16, 1, 0.5),
            (
                autoscaled(HEAD, DGX, groups=[(DGX, 8)]),
                {"engine_args": {"tensor_parallel_size": 4}},
                16,
                4,
                1.0,
            ),
            (autoscaled(HEAD, groups=[(DGX, 1_000_000)]), {}, 98, 1, 1.0),
            (autoscaled(HEAD, groups=[({"CPU": 64.0}, 8)]), {}, 1, 0, 1.0),
        ],
    )
    def test_what_is_derived(
        self, cluster: Cluster, engine: dict[str, Any], replicas: int, gpus: int, cpus: float
    ) -> None:
        made = plan(cluster, **engine)
        assert (made.replicas, made.gpus, made.cpus) == (replicas, gpus, cpus)
        assert fit.assess(made, cluster, autoscaling=True).verdict in ("fits", "wait", "never")

    @pytest.mark.parametrize(("cpus", "gpus"), [(5, 6), (4, 10), (2, 3), (5, 7)])
    def test_a_node_with_fewer_cpus_than_gpus_is_used_whole(self, cpus: int, gpus: int) -> None:
        cluster = Cluster((HEAD, {"CPU": float(cpus), "GPU": float(gpus)}))
        made = plan(cluster)
        assert made.replicas == gpus
        assert round(made.cpus * 10_000) * gpus <= cpus * 10_000
        assert fit.assess(made, cluster, autoscaling=False).verdict == "fits"

    def test_cpus_that_are_set_are_counted_as_people_count(self) -> None:
        assert plan(Cluster(({"CPU": 1.0, "GPU": 10.0},)), num_cpus=0.1).replicas == 10

    def test_a_job_starts_with_what_is_there_and_takes_what_comes(self) -> None:
        nothing, some = autoscaled(HEAD, groups=[(DGX, 8)]), autoscaled(HEAD, DGX, groups=[(DGX, 8)])
        made = plan(nothing)
        assert (made.replicas, made.fewest_replicas) == (64, 1)
        assert fit.assess(made, nothing, autoscaling=True).verdict == "wait"
        assert fit.assess(made, some, autoscaling=True).verdict == "fits"
        made = plan(some)
        assert (made.replicas, made.fewest_replicas) == (64, 8)
        assert made.reasons["replicas"] == (
            "the cluster's nodes hold 8, the autoscaler may reach 64; the job starts with 8"
        )
        assert "holds 8 of 64 replicas of 1 CPU and 1 GPU" in fit.assess(made, some, True).sentence

    def test_few_rows_are_not_worth_new_nodes(self) -> None:
        groups = [(DGX, 8)]
        assert plan(autoscaled(HEAD, groups=groups), rows=1000).replicas == 1
        assert plan(autoscaled(HEAD, H200, groups=groups), rows=1025).replicas == 2
        assert plan(autoscaled(HEAD, DGX, groups=groups), rows=3000).replicas == 8
        assert plan(autoscaled(HEAD, groups=groups), replicas=3).fewest_replicas is None

    @pytest.mark.parametrize(
        ("cluster", "replicas", "rows", "planned", "reason"),
        [
            (Cluster((DGX,)), (2, 4), 100_000, (2, 4), "nodes hold 8"),
            (
                Cluster((HEAD, H200)),
                (1, 4),
                100_000,
                (1, 4),
                "set by replicas=(1, 4), the cluster's nodes hold 1; the job starts with 1",
            ),
            (Cluster((HEAD, H200)), (2, 4), 100_000, (2, 4), "the job starts with 2"),
            (Cluster((DGX,)), (1, 8), 20, (1, 3), "nodes hold 8, the rows feed 3"),
            (Cluster((DGX,)), (2, 8), 0, (2, 2), "nodes hold 8, the rows feed 1"),
            (Cluster((DGX,)), (3, 3), 100_000, (3, 3), "nodes hold 8"),
            (autoscaled(HEAD, groups=[(H200, 2)]), (1, 5), 100_000, (1, 5), "the job starts with 1"),
        ],
    )
    def test_a_range_of_replicas(
        self, cluster: Cluster, replicas: tuple[int, int], rows: int, planned: tuple[int, int], reason: str
    ) -> None:
        made = plan(cluster, rows, replicas=replicas)
        assert (made.fewest, made.replicas) == planned
        assert made.reasons["replicas"].endswith(reason)

    def test_a_number_of_replicas_is_no_range(self) -> None:
        assert (made := plan(Cluster((DGX,)), replicas=3)).fewest == made.replicas == 3

    def test_few_rows_need_few_replicas(self) -> None:
        assert plan(Cluster((DGX,)), rows=10).replicas == 2
        assert plan(Cluster((DGX,)), rows=0).replicas == 1

    @pytest.mark.parametrize(
        ("rows", "max_tokens", "engine", "chunk"),
        [
            (100_000, 16, {}, 512),
            (100_000, 500, {}, 128),
            (100_000, None, {}, 128),
            (200, 16, {}, 25),
            (3, 16, {}, 8),
            (100_000, 16, {"batch_size": 7}, 7),
            (50_000_000, 16, {}, 2500),
            (5_000_000_000, 16, {}, 4096),
        ],
    )
    def test_chunks(self, rows: int, max_tokens: int | None, engine: dict[str, Any], chunk: int) -> None:
        sampling = {"max_tokens": max_tokens} if max_tokens else {}
        made = plan(Cluster((H200,)), rows, sampling, **engine)
        assert made.rows_per_chunk == chunk
        assert made.reasons["rows_per_chunk"]

    @pytest.mark.parametrize(
        ("cluster", "engine", "rows_in_flight"),
        [
            (Cluster((H200,)), {}, 4 * 1024),
            (LAPTOP, {}, 4 * 256),
            (LAPTOP, {"engine_args": {"max_num_seqs": 16}}, 128),
            (LAPTOP, {"rows_in_flight": 2000, "batch_size": 100}, 2000),
            (LAPTOP, {"rows_in_flight": 10, "batch_size": 100}, 100),
        ],
    )
    def test_rows_in_flight_feed_the_scheduler(
        self, cluster: Cluster, engine: dict[str, Any], rows_in_flight: int
    ) -> None:
        made = plan(cluster, **engine)
        assert made.chunks_in_flight * made.rows_per_chunk >= rows_in_flight
        assert (made.chunks_in_flight - 2) * made.rows_per_chunk < max(rows_in_flight, 1)

    def test_every_value_has_its_reason(self) -> None:
        for cluster in (LAPTOP, Cluster((HEAD, DGX)), Cluster(())):
            shown = plan(cluster).shown()
            assert all(isinstance(value, dict) and value["reason"] for value in shown.values())

    def test_log_line_of_the_plan(self) -> None:
        assert plan(Cluster((DGX,))).sentence(100_000) == (
            "starting 8 replicas with 1 GPU each (the cluster's nodes hold 8) for 100,000 rows; 128 rows a "
            "chunk (128 for long responses), 1280 rows in an engine"
        )
        assert (
            plan(Cluster((DGX,)), replicas=(2, 9))
            .sentence(100_000)
            .startswith("starting 2 to 9 replicas with")
        )
        assert plan(LAPTOP).sentence(5).startswith("starting 1 replica on CPU (one is enough without GPUs")


class TestFit:
    @pytest.mark.parametrize(
        ("cluster", "engine", "autoscaling", "verdict", "fragment"),
        [
            (LAPTOP, {}, False, "fits", "the cluster holds 1 of 1 replica of 1 CPU"),
            (LAPTOP, {"num_cpus": 0.1, "replicas": 20}, False, "fits", "20 replicas of 0.1 CPU"),
            (
                LAPTOP,
                {"replicas": 3},
                False,
                "never",
                "replicas: the job asks for 3 replicas of 1 CPU on one node each, and the cluster has room "
                "for 2 (largest node: 2 CPU); ask for fewer replicas or smaller ones, or add nodes, or "
                "set cluster_wait if they are about to join.",
            ),
            (
                Cluster((HEAD, H200, H200)),
                {"engine_args": {**OVER_NODES, "distributed_executor_backend": "mp"}},
                False,
                "never",
                "asks for 1 replica of 1 CPU and 2 GPU on one node each, and the cluster has room for 0 "
                "(largest node: 16 CPU and 1 GPU)",
            ),
            (
                Cluster((HEAD, DGX)),
                {"accelerator_type": "H200"},
                False,
                "never",
                "1 replica of 1 CPU and 1 GPU and an H200 on one node each, and the cluster has room for 0",
            ),
            (Cluster((HEAD, H200)), {"accelerator_type": "H200"}, False, "fits", ""),
            # A range fits where its fewest do.
            (
                Cluster((DGX,)),
                {"replicas": (2, 20)},
                False,
                "fits",
                "holds 8 of 20 replicas of 1 CPU and 1 GPU",
            ),
            (
                Cluster((HEAD, H200)),
                {"replicas": (2, 4)},
                False,
                "never",
                "replicas: the job asks for 2 to 4 replicas of 1 CPU and 1 GPU on one node each, and the "
                "cluster has room for 1 (largest node: 16 CPU and 1 GPU); ask for fewer replicas",
            ),
            (
                autoscaled(HEAD, H200, groups=[(SMALL, 3)]),
                {"replicas": (2, 20)},
                True,
                "wait",
                "waiting for 1 more from the autoscaler",
            ),
            (
                autoscaled(HEAD, groups=[(SMALL, 3)]),
                {"replicas": (4, 8)},
                True,
                "never",
                "with all that the autoscaler may add there is room for 3",
            ),
            (Cluster(()), {}, False, "never", "the cluster has room for 0 (largest node: 0 CPU)"),
            (Cluster((HEAD,)), {"replicas": 9}, True, "wait", "waiting for 1 more from the autoscaler."),
            (autoscaled(HEAD, groups=[(HEAD, 1)]), {"replicas": 9}, True, "wait", "waiting for 1 more"),
            (
                autoscaled(HEAD, groups=[({"CPU": 4.0}, 2)]),
                {"replicas": 20},
                True,
                "never",
                "with all that the autoscaler may add there is room for 16: g0 (at most 2 nodes of 4 CPU); "
                "ask for fewer replicas or smaller ones, or add nodes, or change the node groups.",
            ),
            # Eight GPUs in all, but on eight nodes.
            (
                autoscaled(HEAD, groups=[(SMALL, 8), ({"CPU": 64.0}, 1)]),
                {"engine_args": {"tensor_parallel_size": 8, "distributed_executor_backend": "mp"}},
                True,
                "never",
                "asks for 1 replica of 1 CPU and 8 GPU on one node each, and the cluster has room for 0 "
                "(largest node: 8 CPU and 0 GPU); with all that the autoscaler may add there is room for 0: "
                "g0 (at most 8 nodes of 4 CPU and 1 GPU), g1 (at most 1 node of 64 CPU and 0 GPU); ask",
            ),
            (
                autoscaled(HEAD, groups=[(SMALL, 8)]),
                {"engine_args": {"tensor_parallel_size": 8}},
                True,
                "wait",
                "asks for 1 replica of 1 CPU and 8 GPU over any nodes, and the cluster has room for 0 "
                "(largest node: 8 CPU and 0 GPU); waiting for 1 more",
            ),
            (
                autoscaled(HEAD, groups=[(SMALL, 8)], max_nodes=7),
                {"engine_args": {"tensor_parallel_size": 8}},
                True,
                "never",
                "g0 (at most 8 nodes of 4 CPU and 1 GPU), in all at most 7 nodes",
            ),
            # Few groups name the type of their accelerator; a group that names another type does not fit.
            (
                autoscaled(HEAD, groups=[(SMALL, 8)]),
                {"accelerator_type": "H200"},
                True,
                "wait",
                "waiting for 1 more",
            ),
            (
                autoscaled(HEAD, groups=[(DGX, 8), ({"CPU": 64.0}, 8)]),
                {"accelerator_type": "H200"},
                True,
                "never",
                "room for 0: g0 (at most 8 nodes of 128 CPU and 8 GPU and an H100), g1 (at most 8",
            ),
        ],
    )
    def test_whether_the_cluster_can_ever_hold_it(
        self, cluster: Cluster, engine: dict[str, Any], autoscaling: bool, verdict: str, fragment: str
    ) -> None:
        judged = fit.assess(plan(cluster, **engine), cluster, autoscaling)
        assert (judged.verdict, fragment in judged.sentence) == (verdict, True), judged.sentence


class TestMayHold:
    """How many replicas fit when an autoscaler has added all that it may."""

    @pytest.mark.parametrize(
        ("cluster", "engine", "replicas"),
        [
            # Each group counts its own nodes, and a head with GPUs belongs to no group.
            (autoscaled(HEAD, groups=[(DGX, 2), (SMALL, 3)]), {}, 19),
            (autoscaled({**DGX, **HEAD}, groups=[(SMALL, 3)]), {}, 11),
            (
                autoscaled(HEAD, groups=[(DGX, 2), (SMALL, 3)]),
                {"engine_args": {"tensor_parallel_size": 4}},
                4,
            ),
            # The largest nodes count first if the autoscaler limits their number.
            (autoscaled(HEAD, groups=[(SMALL, 3), (DGX, 2)], max_nodes=3), {}, 17),
            (autoscaled(HEAD, groups=[({"CPU": 64.0}, 9), (SMALL, 3)], max_nodes=3), {}, 3),
            (autoscaled(HEAD, groups=[(DGX, 9)], max_resources={"GPU": 20.0, "TPU": 0.0}), {}, 20),
            (autoscaled(HEAD, groups=[(DGX, 2), (H200, 3)]), {"accelerator_type": "H200"}, 3),
            (autoscaled(HEAD, groups=[(DGX, 2), (SMALL, 3)]), {"engine_args": OVER_NODES}, 9),
            (
                autoscaled(HEAD, groups=[(DGX, 1), (H200, 5)]),
                {"engine_args": OVER_NODES, "accelerator_type": "H200"},
                2,
            ),
        ],
    )
    def test_what_the_groups_hold_is_planned(
        self, cluster: Cluster, engine: dict[str, Any], replicas: int
    ) -> None:
        made = plan(cluster, rows=10_000_000, **engine)
        assert made.replicas == replicas
        assert fit.assess(made, cluster, autoscaling=True).verdict in ("fits", "wait")
        one_more = plan(cluster, **engine, replicas=replicas + 1)
        assert fit.assess(one_more, cluster, autoscaling=True).verdict == "never"

    def test_many_groups_are_counted_and_not_all_named(self) -> None:
        cluster = autoscaled(HEAD, groups=[(SMALL, 1)] * 9)
        refused = fit.assess(plan(cluster, replicas=10), cluster, autoscaling=True)
        assert "g5 (at most 1 node of 4 CPU and 1 GPU), 3 more;" in refused.sentence


class TestOverNodes:
    """With vLLM's Ray executor, the GPUs of a replica may be on several nodes."""

    def test_single_gpus_of_several_nodes_add_up(self):
        made = plan(Cluster((HEAD, H200, H200)), engine_args=OVER_NODES)
        assert (made.replicas, made.gpus, made.spans_nodes) == (1, 2, True)
        assert fit.assess(made, Cluster((HEAD, H200, H200)), autoscaling=False).verdict == "fits"

    def test_gpus_of_another_type_do_not(self):
        made = plan(Cluster((HEAD, DGX, H200, H200)), engine_args=OVER_NODES, accelerator_type="H200")
        assert made.replicas == 1

    def test_where_another_executor_is_asked_for_they_do_not(self):
        args = {**OVER_NODES, "distributed_executor_backend": "mp"}
        made = plan(Cluster((HEAD, H200, H200)), engine_args=args)
        assert not made.spans_nodes
        assert fit.assess(made, Cluster((HEAD, H200, H200)), autoscaling=False).verdict == "never"

    @pytest.mark.parametrize(
        ("cluster", "engine", "spans_nodes"),
        [
            (Cluster((HEAD, H200, H200)), {}, True),
            (Cluster((HEAD, H200, DGX)), {}, False),
            (Cluster((HEAD, H200, H200, DGX)), {"accelerator_type": "H200"}, True),
            (autoscaled(HEAD, H200, H200, groups=[(DGX, 1)]), {}, False),
            (autoscaled(HEAD, H200, H200, groups=[(DGX, 0)]), {}, True),
            (autoscaled(HEAD, groups=[(SMALL, 2)]), {"accelerator_type": "L4"}, True),
            # No node says how many GPUs one has.
            (Cluster((HEAD,)), {}, False),
            (Cluster((HEAD, H200, H200)), {"engine": "ray_data_llm"}, False),
            (Cluster((HEAD, H200, H200)), {"engine": "echo"}, True),
        ],
    )
    @pytest.mark.parametrize(
        "sizes", [{"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}]
    )
    def test_chosen_where_no_node_has_the_gpus(
        self, cluster: Cluster, engine: dict[str, Any], spans_nodes: bool, sizes: dict[str, int]
    ) -> None:
        made = plan(cluster, engine_args=sizes, **engine)
        assert made.spans_nodes is spans_nodes
        told = "over several nodes with vLLM's Ray executor, since none has over 1"
        assert (told in made.reasons["gpus_per_replica"]) is spans_nodes
        assert ("GPUs each, over several nodes (" in made.sentence(5)) is spans_nodes

    @pytest.mark.parametrize(
        ("nodes", "replicas"),
        [
            ([H200] * 5, 2),
            # The replica's own CPU lies beside its first GPU, so sums over nodes don't count.
            ([{"GPU": 1.0}] * 2 + [HEAD], 0),
            ([{"GPU": 1.0}, H200, HEAD], 1),
            ([{"GPU": 1.0}] * 3 + [H200, HEAD], 1),
            ([{"CPU": 0.5, "GPU": 1.0}] * 2, 0),
            # A worker takes a whole GPU.
            ([{"CPU": 1.0, "GPU": 0.5}] * 4, 0),
        ],
    )
    def test_counted_bundle_by_bundle(self, nodes: list[dict[str, float]], replicas: int) -> None:
        assert Cluster(tuple(nodes)).holds({"CPU": 1.0, "GPU": 2.0}, spans_nodes=True) == replicas

    def test_too_few_in_all_is_refused(self):
        made = plan(Cluster((HEAD, H200)), engine_args=OVER_NODES)
        refused = fit.assess(made, Cluster((HEAD, H200)), autoscaling=False)
        assert refused.verdict == "never"
        assert "2 GPU over any nodes" in refused.sentence

    def test_one_gpu_spans_nothing(self):
        assert not plan(Cluster((H200,)), engine_args={"distributed_executor_backend": "ray"}).spans_nodes


@pytest.mark.parametrize(
    ("cluster_wait", "autoscales", "held_before", "seconds"),
    [
        (None, False, False, 0),
        (None, False, True, 300),
        (None, True, False, 900),
        (None, True, True, 900),
        (20.0, True, True, 20),
        (0.0, True, True, 0),
    ],
)
def test_how_long_missing_nodes_are_waited_for(
    cluster_wait: float | None, autoscales: bool, held_before: bool, seconds: float
) -> None:
    assert fit.longest_wait(cluster_wait, autoscales, held_before) == seconds
