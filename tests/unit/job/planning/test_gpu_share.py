# SPDX-License-Identifier: Apache-2.0
"""How many engines fit beside each other on a GPU, and which part of its memory each has."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.job.planning import fit
from airflow_provider_raybatch.job.planning.engine_memory import DEFAULT_UTILIZATION
from airflow_provider_raybatch.job.planning.gpu_share import OUTSIDE, utilization_of, with_utilization
from airflow_provider_raybatch.job.planning.gpus import Gpu, gpu_named
from airflow_provider_raybatch.job.planning.node_groups import gpus_in_words, times
from airflow_provider_raybatch.job.planning.plan import ClusterView
from tests.support.clusters import DGX, H200, HEAD, LAPTOP, SMALL, autoscaled, plan


def gpu(name: str) -> Gpu:
    found = gpu_named(name)
    assert found is not None
    return found


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
    ("room", "amount", "found"),
    [
        (1, 0.5, 2),
        (2, 0.6, 2),
        (8, 0.3, 24),
        (1.5, 0.5, 3),
        (0.5, 0.6, 0),
        (1, 0.1, 10),
        (7, 2, 3),
        (1, 1, 1),
    ],
)
def test_shares_are_counted_gpu_by_gpu(room: float, amount: float, found: int) -> None:
    """Ray takes a share from one GPU, so what is left of two GPUs holds none."""
    assert times(room, amount, "GPU") == found


def test_rests_of_several_cpus_are_room() -> None:
    assert times(2, 0.6, "CPU") == 3


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


def test_amounts_of_gpus_in_words() -> None:
    assert [gpus_in_words(one) for one in (1, 2.0, 0.25)] == ["1 GPU", "2 GPUs", "0.25 GPU"]
