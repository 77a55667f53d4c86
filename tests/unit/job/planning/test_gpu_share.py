# SPDX-License-Identifier: Apache-2.0
"""How many engines fit beside each other on a GPU, which part of its memory each has, and what fits there."""

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
from tests.support.clusters import DGX, H200, HEAD, LAPTOP, SMALL, autoscaled, plan
from tests.support.model_configs import gpu, sizes


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
