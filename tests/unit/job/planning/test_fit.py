# SPDX-License-Identifier: Apache-2.0
"""Whether a cluster can ever hold a plan, and a share of a GPU a model."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning import fit
from airflow_provider_raybatch.job.planning.engine_memory import DEFAULT_UTILIZATION, known_gpus
from airflow_provider_raybatch.job.planning.fit import (
    OUTSIDE,
    share_refusal,
    smallest_share,
    utilization_of,
    with_utilization,
)
from airflow_provider_raybatch.job.planning.model_fit import fit_of
from airflow_provider_raybatch.job.planning.node_groups import times
from airflow_provider_raybatch.job.planning.plan import ClusterView
from tests.support.approved import AssertSentences
from tests.support.clusters import DGX, H200, HEAD, LAPTOP, OVER_NODES, SMALL, autoscaled, plan
from tests.support.model_configs import gpu, sizes

OF_H200 = {"accelerator_type": "H200"}
BY_FOUR = {"engine_args": {"tensor_parallel_size": 4}}
ON_ONE = {"engine_args": {**OVER_NODES, "distributed_executor_backend": "mp"}}


class TestFit:
    def test_whether_the_cluster_can_ever_hold_it(self, assert_sentences: AssertSentences) -> None:
        """A range fits where its fewest do; a group that names no accelerator may have the right one."""

        def said(cluster: ClusterView, engine: dict[str, Any], autoscaling: bool) -> str:
            judged = fit.assess(plan(cluster, **engine), cluster, autoscaling)
            return f"{judged.verdict}: {judged.sentence}"

        assert_sentences(said)


class TestMayHold:
    """How many replicas fit when an autoscaler has added all that it may."""

    @pytest.mark.parametrize(
        ("cluster", "engine", "replicas"),
        [
            # Each group counts its own nodes, and a head with GPUs belongs to no group.
            (autoscaled(HEAD, groups=[(DGX, 2), (SMALL, 3)]), {}, 19),
            (autoscaled({**DGX, **HEAD}, groups=[(SMALL, 3)]), {}, 11),
            (autoscaled(HEAD, groups=[(DGX, 2), (SMALL, 3)]), BY_FOUR, 4),
            # The largest nodes count first if the autoscaler limits their number.
            (autoscaled(HEAD, groups=[(SMALL, 3), (DGX, 2)], max_nodes=3), {}, 17),
            (autoscaled(HEAD, groups=[({"CPU": 64.0}, 9), (SMALL, 3)], max_nodes=3), {}, 3),
            (autoscaled(HEAD, groups=[(DGX, 9)], max_resources={"GPU": 20.0, "TPU": 0.0}), {}, 20),
            (autoscaled(HEAD, groups=[(DGX, 2), (H200, 3)]), {"accelerator_type": "H200"}, 3),
            (autoscaled(HEAD, groups=[(DGX, 2), (SMALL, 3)]), {"engine_args": OVER_NODES}, 9),
            (autoscaled(HEAD, groups=[(DGX, 1), (H200, 5)]), {"engine_args": OVER_NODES, **OF_H200}, 2),
        ],
    )
    def test_what_the_groups_hold_is_planned(
        self, cluster: ClusterView, engine: dict[str, Any], replicas: int
    ) -> None:
        made = plan(cluster, rows=10_000_000, **engine)
        assert made.replicas == replicas
        assert fit.assess(made, cluster, autoscaling=True).verdict in ("fits", "wait")
        one_more = plan(cluster, **engine, replicas=replicas + 1)
        assert fit.assess(one_more, cluster, autoscaling=True).verdict == "never"


class TestOverNodes:
    """With vLLM's Ray executor, the GPUs of a replica may be on several nodes."""

    def test_another_type_is_respected(self) -> None:
        cluster = ClusterView((HEAD, DGX, H200, H200))
        assert plan(cluster, engine_args=OVER_NODES, accelerator_type="H200").replicas == 1

    @pytest.mark.parametrize(
        ("cluster", "engine", "spans_nodes"),
        [
            (ClusterView((HEAD, H200, H200)), {}, True),
            (ClusterView((HEAD, H200, DGX)), {}, False),
            (ClusterView((HEAD, H200, H200, DGX)), {"accelerator_type": "H200"}, True),
            (autoscaled(HEAD, H200, H200, groups=[(DGX, 1)]), {}, False),
            (autoscaled(HEAD, H200, H200, groups=[(DGX, 0)]), {}, True),
            (autoscaled(HEAD, groups=[(SMALL, 2)]), {"accelerator_type": "L4"}, True),
            # No node says how many GPUs one has.
            (ClusterView((HEAD,)), {}, False),
            (ClusterView((HEAD, H200, H200)), {"engine": "ray_data_llm"}, False),
            (ClusterView((HEAD, H200, H200)), {"engine": "echo"}, True),
        ],
    )
    @pytest.mark.parametrize(
        "sizes", [{"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}]
    )
    def test_chosen_where_no_node_has_the_gpus(
        self, cluster: ClusterView, engine: dict[str, Any], spans_nodes: bool, sizes: dict[str, int]
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
        assert ClusterView(tuple(nodes)).holds({"CPU": 1.0, "GPU": 2.0}, spans_nodes=True) == replicas

    def test_one_gpu_spans_nothing(self):
        assert not plan(ClusterView((H200,)), engine_args={"distributed_executor_backend": "ray"}).spans_nodes


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
def test_cluster_wait_says_how_long_nodes_are_waited_for(
    cluster_wait: float | None, autoscales: bool, held_before: bool, seconds: float
) -> None:
    assert fit.longest_wait(cluster_wait, autoscales, held_before) == seconds


@pytest.mark.parametrize("name", ["T4", "L4", "H100", "H200"])
@pytest.mark.parametrize("engines", [2, 3, 4])
def test_all_shares_of_a_gpu_fit_on_it(name: str, engines: int) -> None:
    """With what CUDA takes of each, and with the room that vLLM leaves of a GPU of its own."""
    memory = gpu(name).memory
    each = utilization_of(int(10_000 / engines) / 10_000, memory) * memory + OUTSIDE
    assert 0.9 * DEFAULT_UTILIZATION * memory < engines * each <= DEFAULT_UTILIZATION * memory


def test_a_whole_gpu_has_the_memory_that_vllm_takes() -> None:
    assert utilization_of(1.0, gpu("H200").memory) == DEFAULT_UTILIZATION
    assert with_utilization({}, None, gpu("H200")) == with_utilization({}, 1.0, gpu("H200")) == {}


def test_memory_that_the_user_sets_stays() -> None:
    given = {"gpu_memory_utilization": 0.3}
    assert with_utilization(given, 0.5, gpu("H200")) == given
    assert with_utilization({}, 0.5, gpu("H200")) == {"gpu_memory_utilization": 0.455}
    assert utilization_of(0.5, None) == 0.46


@pytest.mark.parametrize(
    ("room", "amount", "resource", "found"),
    [
        (1, 0.5, "GPU", 2),
        (2, 0.6, "GPU", 2),
        (2, 0.6, "CPU", 3),
        (8, 0.3, "GPU", 24),
        (1.5, 0.5, "GPU", 3),
        (0.5, 0.6, "GPU", 0),
        (1, 0.1, "GPU", 10),
        (7, 2, "GPU", 3),
    ],
)
def test_shares_are_counted_gpu_by_gpu(room: float, amount: float, resource: str, found: int) -> None:
    """Ray takes a share from one GPU: what is left of two holds none, and rests of CPUs are room."""
    assert times(room, amount, resource) == found


@pytest.mark.parametrize(
    ("cluster", "share", "replicas", "cpus"),
    [
        (ClusterView((HEAD, H200)), 0.5, 2, 1.0),
        (ClusterView((HEAD, DGX)), 0.3, 24, 1.0),
        (ClusterView((HEAD, DGX)), 0.6, 8, 1.0),
        (ClusterView((HEAD, SMALL)), 0.125, 8, 0.5),
        (autoscaled(HEAD, groups=[(H200, 4)]), 0.5, 8, 1.0),
        (autoscaled(HEAD, groups=[(H200, 4)], max_resources={"GPU": 2.0}), 0.6, 2, 1.0),
        (ClusterView((HEAD, H200)), 1, 1, 1.0),
    ],
)
def test_as_many_replicas_as_shares_fit(
    cluster: ClusterView, share: float, replicas: int, cpus: float
) -> None:
    made = plan(cluster, num_gpus=share)
    assert (made.replicas, made.gpus, made.cpus) == (replicas, share, cpus)


@pytest.mark.parametrize("engine", ["vllm", "echo"])
def test_who_asks_for_a_share_gets_a_gpu(engine: str) -> None:
    """Also an echo, to try out where replicas run; a cluster without GPUs never has room."""
    made = plan(ClusterView((HEAD, H200)), engine=engine, num_gpus=0.5)
    assert "with 0.5 GPU each (the cluster's nodes hold 2)" in made.sentence(9)
    assert made.shown()["gpus_per_replica"] == {
        "value": 0.5,
        "reason": "set by num_gpus; 1 more of its size fits beside it on a GPU",
    }
    nowhere = fit.assess(plan(LAPTOP, engine=engine, num_gpus=0.5), LAPTOP, autoscaling=False)
    assert nowhere.verdict == "never"
    assert "of 1 CPU and 0.5 GPU on one node each" in nowhere.sentence


def test_a_share_beside_which_no_other_fits_is_told() -> None:
    shown: Any = plan(ClusterView((HEAD, H200)), num_gpus=0.7).shown()["gpus_per_replica"]
    assert shown["reason"] == "set by num_gpus; no other fits beside it on a GPU"


def test_a_share_that_can_not_hold_a_model_is_refused(assert_sentences: AssertSentences) -> None:
    """Nor a row of so many tokens; nothing is said of what may work."""

    def refused(name: str, share: float, *types: str, tokens: int = 0, **args: Any) -> str | None:
        return share_refusal(sizes(name), f"acme/{name}", args, share, known_gpus(types), tokens)

    assert_sentences(refused)


@pytest.mark.parametrize(("name", "accelerator_type"), [("8B", "L4"), ("8B", "H200"), ("0.5B", "T4")])
def test_the_smallest_share_fits_and_a_smaller_one_does_not(name: str, accelerator_type: str) -> None:
    found = smallest_share(sizes(name), {}, gpu(accelerator_type), 1024)
    assert found is not None
    for share, fits in ((found, True), (found - 0.05, False)):
        args = {**with_utilization({}, share, gpu(accelerator_type)), "max_model_len": 1024}
        assert fit_of(sizes(name), args, gpu(accelerator_type), 8, share).fits is fits


def test_the_plan_tells_what_fits_beside() -> None:
    args = {**with_utilization({}, 0.25, gpu("H200")), "max_model_len": 8192}
    found = fit_of(sizes("0.5B"), args, gpu("H200"), 8, 0.25)
    assert found.fits
    assert found.reasons["replicas"] == "32 replicas of 0.25 GPU a node of 8 GPUs"
    assert found.reasons["fractional_gpus"] == (
        "4 engines of 0.25 GPU each on one; gpu_memory_utilization is 0.225"
    )
    assert "parallel" not in found.reasons
