# SPDX-License-Identifier: Apache-2.0
"""What is planned for a cluster: replicas, GPUs, CPUs and rows in flight."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning import fit
from airflow_provider_raybatch.job.planning.plan import ClusterView, longest_response, make
from airflow_provider_raybatch.job.row import Request
from tests.support.clusters import DGX, H200, HEAD, LAPTOP, SMALL, autoscaled, plan
from tests.support.specs import spec


def parallel(size: int, **further: int) -> dict[str, Any]:
    return {"engine_args": {"tensor_parallel_size": size, **further}}


class TestPlan:
    @pytest.mark.parametrize(
        ("cluster", "engine", "replicas", "gpus", "cpus"),
        [
            (LAPTOP, {}, 1, 0, 1.0),
            (LAPTOP, {"engine": "echo"}, 1, 0, 1.0),
            (LAPTOP, {"num_cpus": 0.5, "replicas": 4}, 4, 0, 0.5),
            (LAPTOP, parallel(2), 1, 2, 1.0),
            (LAPTOP, {"accelerator_type": "H200"}, 1, 1, 1.0),
            (ClusterView((HEAD, H200)), {}, 1, 1, 1.0),
            (ClusterView((HEAD, H200)), {"engine": "echo"}, 1, 0, 1.0),
            # Unless it is to take the places that vLLM would.
            (ClusterView((HEAD, H200, H200)), {"engine": "echo", **parallel(1)}, 2, 1, 1.0),
            (ClusterView((HEAD, DGX)), {}, 8, 1, 1.0),
            (ClusterView((HEAD, DGX, DGX)), parallel(4), 4, 4, 1.0),
            (ClusterView((HEAD, DGX)), parallel(2, pipeline_parallel_size=2), 2, 4, 1.0),
            (ClusterView((HEAD, DGX, H200)), {"accelerator_type": "H200"}, 1, 1, 1.0),
            (ClusterView((HEAD, DGX, H200)), {"replicas": 3}, 3, 1, 1.0),
            # A node with fewer CPUs than GPUs.
            (ClusterView((HEAD, {"CPU": 4.0, "GPU": 8.0})), {}, 8, 1, 0.5),
            # No GPU yet, but an autoscaler that may add some.
            (autoscaled(HEAD, groups=[(SMALL, 8)]), {}, 8, 1, 1.0),
            (autoscaled(HEAD, groups=[({"CPU": 4.0, "GPU": 8.0}, 2)]), {}, 16, 1, 0.5),
            (autoscaled(HEAD, DGX, groups=[(DGX, 8)]), parallel(4), 16, 4, 1.0),
            (autoscaled(HEAD, groups=[(DGX, 1_000_000)]), {}, 98, 1, 1.0),
            (autoscaled(HEAD, groups=[({"CPU": 64.0}, 8)]), {}, 1, 0, 1.0),
        ],
    )
    def test_what_is_derived(
        self, cluster: ClusterView, engine: dict[str, Any], replicas: int, gpus: int, cpus: float
    ) -> None:
        made = plan(cluster, **engine)
        assert (made.replicas, made.gpus, made.cpus) == (replicas, gpus, cpus)
        assert fit.assess(made, cluster, autoscaling=True).verdict in ("fits", "wait", "never")

    @pytest.mark.parametrize(("cpus", "gpus"), [(5, 6), (4, 10), (2, 3), (5, 7)])
    def test_a_node_with_fewer_cpus_than_gpus_is_used_whole(self, cpus: int, gpus: int) -> None:
        cluster = ClusterView((HEAD, {"CPU": float(cpus), "GPU": float(gpus)}))
        made = plan(cluster)
        assert made.replicas == gpus
        assert round(made.cpus * 10_000) * gpus <= cpus * 10_000
        assert fit.assess(made, cluster, autoscaling=False).verdict == "fits"

    def test_num_cpus_are_counted_as_people_count(self) -> None:
        assert plan(ClusterView(({"CPU": 1.0, "GPU": 10.0},)), num_cpus=0.1).replicas == 10

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
            (ClusterView((DGX,)), (2, 4), 100_000, (2, 4), "nodes hold 8"),
            (ClusterView((HEAD, H200)), (1, 4), 100_000, (1, 4), "nodes hold 1; the job starts with 1"),
            (ClusterView((HEAD, H200)), (2, 4), 100_000, (2, 4), "the job starts with 2"),
            (ClusterView((DGX,)), (1, 8), 20, (1, 3), "nodes hold 8, the rows feed 3"),
            (ClusterView((DGX,)), (2, 8), 0, (2, 2), "nodes hold 8, the rows feed 1"),
            (ClusterView((DGX,)), (3, 3), 100_000, (3, 3), "nodes hold 8"),
            (ClusterView((DGX,)), 3, 100_000, (3, 3), "set by replicas"),
            (ClusterView((DGX,)), None, 10, (2, 2), "nodes hold 8, the rows feed 2"),
            (ClusterView((DGX,)), None, 0, (1, 1), "nodes hold 8, the rows feed 1"),
            (autoscaled(HEAD, groups=[(H200, 2)]), (1, 5), 100_000, (1, 5), "the job starts with 1"),
        ],
    )
    def test_fewest_and_most_replicas(
        self, cluster: ClusterView, replicas: Any, rows: int, planned: tuple[int, int], reason: str
    ) -> None:
        made = plan(cluster, rows, replicas=replicas)
        assert (made.fewest, made.replicas) == planned
        assert made.reasons["replicas"].endswith(reason)

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
        made = plan(ClusterView((H200,)), rows, sampling, **engine)
        assert made.rows_per_chunk == chunk
        assert made.reasons["rows_per_chunk"]

    @pytest.mark.parametrize(
        ("job", "rows", "chunk"),
        [
            (None, [16, 64], "512, as responses are short"),
            (None, [16, 65], "128, as responses are long"),
            (None, [16, None], "128, as responses are long"),
            (500, [16, 8], "512, as responses are short"),
            (16, [None, 500], "128, as responses are long"),
        ],
    )
    @pytest.mark.parametrize("fields", [{}, {"adapters": {"a": "/a"}, "adapter_column": "a"}])
    def test_limits_of_rows_decide_chunks(
        self, job: int | None, rows: list[int | None], chunk: str, fields: dict[str, Any]
    ) -> None:
        """Sampling comes by row from a column, a function, a line of a batch file, or a step."""
        limits = [{"max_tokens": one} if one else {} for one in [job, *rows]]
        asked = spec(engine="vllm", sampling=limits[0], sampling_column="sampling", **fields)
        requests = [Request(prompt="x", sampling=limit) for limit in limits[1:]]
        made = make(asked, 100_000, ClusterView((H200,)), longest_response(asked, requests))
        assert made.reasons["rows_per_chunk"] == chunk

    @pytest.mark.parametrize(
        ("cluster", "engine", "rows_in_flight"),
        [
            (ClusterView((H200,)), {}, 4 * 1024),
            (LAPTOP, {}, 4 * 256),
            (LAPTOP, {"engine_args": {"max_num_seqs": 16}}, 128),
            (LAPTOP, {"rows_in_flight": 2000, "batch_size": 100}, 2000),
            (LAPTOP, {"rows_in_flight": 10, "batch_size": 100}, 100),
        ],
    )
    def test_rows_in_flight_feed_the_scheduler(
        self, cluster: ClusterView, engine: dict[str, Any], rows_in_flight: int
    ) -> None:
        made = plan(cluster, **engine)
        assert made.chunks_in_flight * made.rows_per_chunk >= rows_in_flight
        assert (made.chunks_in_flight - 2) * made.rows_per_chunk < max(rows_in_flight, 1)

    def test_log_line_of_the_plan(self) -> None:
        assert plan(ClusterView((DGX,))).sentence(100_000) == (
            "starting 8 replicas with 1 GPU each (the cluster's nodes hold 8) for 100,000 rows; 128 rows a "
            "chunk (128, as responses are long), 1,280 rows in an engine at a time"
        )
        some = plan(ClusterView((DGX,)), replicas=(2, 9))
        assert some.sentence(100_000).startswith("starting 2 to 9 replicas with")
        assert plan(LAPTOP).sentence(5).startswith("starting 1 replica on CPU (one is enough without GPUs")
