# SPDX-License-Identifier: Apache-2.0
"""What is said, before anything runs, of GPUs that have no price."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.monitor.budgets import check_prices
from airflow_provider_raybatch.job.planning.node_groups import AutoscalerLimits, NodeGroup
from airflow_provider_raybatch.job.planning.plan import ClusterView

H100 = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:H100": 1.0}
UNNAMED = {"CPU": 8.0, "GPU": 1.0}


def told(
    price: object, cluster: ClusterView, asked: str | None = None, most: float | None = None
) -> list[str]:
    return list(check_prices(CostArguments(gpu_hour_price=price, max_cost=most), asked, cluster))


@pytest.mark.parametrize("price", [None, 2, {"H100": 2}, {"*": 2, "L4": 1}])
def test_nothing_is_said_where_each_type_has_a_price(price: object) -> None:
    assert told(price, ClusterView((H100,)), most=1) == []


def test_a_type_without_a_price_is_told() -> None:
    missing = "gpu_hour_price has no price for GPUs of type 'H100'; add 'H100' or '*'"
    assert told({"L4": 1}, ClusterView((H100,))) == [f"{missing}, or the cost of this job will not be known"]
    with pytest.raises(PreflightError) as caught:
        told({"L4": 1}, ClusterView((H100,)), most=5)
    assert str(caught.value) == f"max_cost: {missing}; the limit can't be kept without it."
    assert told({"L4": 1}, ClusterView((H100,)), asked="L4", most=5) == []


@pytest.mark.parametrize("asked", [None, "A100", "A100-40G"])
@pytest.mark.parametrize("priced", ["A100", "A100-40G"])
def test_one_name_of_a_node_needs_a_price(asked: str | None, priced: str) -> None:
    """The job is billed by it, see :mod:`airflow_provider_raybatch.job.planning.cluster_view`."""
    both = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:A100": 1.0, "accelerator_type:A100-40G": 1.0}
    assert told({priced: 3}, ClusterView((both, {"CPU": 4.0})), asked=asked, most=5) == []


def test_a_misspelt_type_is_told_with_the_likely_name() -> None:
    assert "(is 'H10O' meant for it?)" in told({"H10O": 1}, ClusterView((H100,)))[0]
    assert told({"H10O": 4, "*": 1}, ClusterView((H100,))) == [
        "gpu_hour_price: Ray knows no accelerator type 'H10O', and '*' is the price of 'H100'; did you mean "
        "that?"
    ]


def test_gpus_without_a_type_need_the_price_of_any() -> None:
    assert "GPUs whose type Ray does not know; add '*'" in told({"H100": 1}, ClusterView((UNNAMED,)))[0]
    later = AutoscalerLimits((NodeGroup("gpus", UNNAMED, 4),))  # which tell their type when they run
    assert told({"H100": 1}, ClusterView((), later), most=1) == []
