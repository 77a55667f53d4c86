# SPDX-License-Identifier: Apache-2.0
"""Whether a plan fits a cluster now, later or never, and how long it is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning import fit
from airflow_provider_raybatch.job.planning.plan import ClusterView
from tests.support.approved import AssertSentences
from tests.support.clusters import DGX, H200, HEAD, OVER_NODES, SMALL, autoscaled, plan

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
