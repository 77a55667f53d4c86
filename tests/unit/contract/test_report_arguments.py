# SPDX-License-Identifier: Apache-2.0
"""Prices, the limit of a job's cost, and what its report shows."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.arguments.data import ReportArguments
from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from tests.support.specs import spec, spec_error


def test_gpu_hour_price_is_of_any_gpu_or_by_type() -> None:
    assert parse(CostArguments, {"gpu_hour_price": "2.5"}).gpu_hour_price == {"*": 2.5}
    assert parse(CostArguments, {"gpu_hour_price": {"H100": 3}}).gpu_hour_price == {"H100": 3.0}
    assert parse(CostArguments, {}).gpu_hour_price is None


@pytest.mark.parametrize("price", ["much", -1, {"H100": -1}, {"H100": "nan"}, {"H100": None}, ["H100"]])
def test_gpu_hour_price_that_is_none_is_refused(price: object) -> None:
    with pytest.raises(SpecError, match=r"^gpu_hour_price(\.\S+)?: "):
        parse(CostArguments, {"gpu_hour_price": price})


@pytest.mark.parametrize("most", [0, -1, "nan", "inf", "much"])
def test_max_cost_that_is_no_amount_is_refused(most: object) -> None:
    with pytest.raises(SpecError, match=r"^max_cost: "):
        parse(CostArguments, {"max_cost": most})


@pytest.mark.parametrize("samples", [-1, 101, "some"])
def test_report_samples_out_of_range_are_refused(samples: object) -> None:
    with pytest.raises(SpecError, match=r"^report_samples: "):
        parse(ReportArguments, {"report_samples": samples})


def test_rows_that_are_not_shown_are_not_logged_by_vllm() -> None:
    logs = {"engine": "vllm", "engine_args": {"enable_log_requests": True}}
    assert spec_error(**logs, report_samples=0).startswith("engine_args: enable_log_requests has vLLM log ")
    assert spec(**logs).shows_rows
    assert not spec(report_samples=0).shows_rows
