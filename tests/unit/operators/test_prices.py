# SPDX-License-Identifier: Apache-2.0
"""The price of a GPU hour: the connection's, what the operator says instead, and what can't be used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.places.providers import ClusterDefinition
from tests.support.airflow_tasks import Run, connection
from tests.support.approved import AssertSentences
from tests.support.batches import batch, spec_of_job
from tests.support.fake_ray import FakeRay

OF_CONNECTION = {"H100": 3.9, "*": 1.2}


@pytest.fixture
def prices(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection has prices."""
    extra = json.dumps({"gpu_hour_price": OF_CONNECTION, "currency": "EUR"})
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, extra=extra))


@pytest.mark.usefixtures("prices")
@pytest.mark.parametrize(
    ("given", "price"),
    [
        ({}, OF_CONNECTION),
        ({"gpu_hour_price": {"H100": 3.5, "L4": "0.8"}}, {"H100": 3.5, "L4": 0.8, "*": 1.2}),
        ({"gpu_hour_price": '{"H100": 3.5}'}, {"H100": 3.5, "*": 1.2}),
        ({"gpu_hour_price": 2}, {"*": 2.0}),
        ({"gpu_hour_price": "2"}, {"*": 2.0}),
        ({"gpu_hour_price": "None"}, OF_CONNECTION),
    ],
)
def test_the_operator_overrides_the_connection(
    ray: FakeRay, run: Run, given: dict[str, Any], price: dict[str, float]
) -> None:
    batch(**given).execute(run.context())
    spec = spec_of_job(ray)
    assert (spec["gpu_hour_price"], spec["currency"]) == (price, "EUR")


def test_without_prices_a_job_has_none(ray: FakeRay, run: Run) -> None:
    batch().execute(run.context())
    assert "gpu_hour_price" not in {name for name, value in spec_of_job(ray).items() if value is not None}


@pytest.mark.usefixtures("prices")
def test_currency_must_be_that_of_the_prices(ray: FakeRay, run: Run) -> None:
    with pytest.raises(RayBatchFailException) as caught:
        batch(gpu_hour_price={"H100": 3.5}, currency="USD").execute(run.context())
    assert str(caught.value) == (
        "currency: 'USD' is given, and the prices of connection 'ray_default' are in EUR; give "
        "gpu_hour_price as a number, or leave currency out."
    )
    batch(gpu_hour_price=3.5, currency="USD").execute(run.context())
    assert spec_of_job(ray)["currency"] == "USD"


def test_prices_of_a_connection_without_a_currency_are_in_usd(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, extra='{"gpu_hour_price": 3}'))
    with pytest.raises(RayBatchFailException, match="connection 'ray_default' are in USD; give gpu_hour"):
        batch(currency="EUR").execute(run.context())
    batch(currency="USD", max_cost="5").execute(run.context())
    spec = spec_of_job(ray)
    assert (spec["gpu_hour_price"], spec["currency"]) == ({"*": 3.0}, "USD")


def test_a_new_price_makes_no_other_job(ray: FakeRay, run: Run) -> None:
    """A retry takes the job that runs, and that keeps the price that it has."""
    first = batch(gpu_hour_price=2).execute(run.context())
    run.try_number += 1
    assert batch(gpu_hour_price=3, max_cost=9).execute(run.context()) == first
    assert spec_of_job(ray)["gpu_hour_price"] == {"*": 2.0}


def test_a_limit_without_a_price_is_refused_before_it_runs(ray: FakeRay, run: Run) -> None:
    with pytest.raises(RayBatchFailException) as caught:
        batch(max_cost=5).execute(run.context())
    assert str(caught.value) == (
        "max_cost: no price of a GPU hour is known to reckon it by; give gpu_hour_price in limits, or set it "
        "in extra of connection 'ray_default'."
    )
    assert not ray.jobs


class Elsewhere(ClusterDefinition):
    """A cluster of a provider, which has no connection with prices."""

    name = None

    def check(self) -> None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {}


def test_a_limit_that_no_connection_can_price_is_found_at_parse() -> None:
    given: dict[str, Any] = {"ray_cluster": Elsewhere(), "ray_conn_id": None, "max_cost": 5}
    with pytest.raises(SpecError, match=r"reckon it by; give gpu_hour_price in limits\.$"):
        batch(**given)
    batch(**given, gpu_hour_price={"H100": 4})
    batch(**given, gpu_hour_price="{{ var.value.price }}")


def test_a_price_that_can_not_be_used_is_found_at_parse(assert_sentences: AssertSentences) -> None:
    def refused(price: Any) -> None:
        with DAG("d", schedule=None):
            batch(gpu_hour_price=price)

    assert_sentences(refused, SpecError)


def test_a_mistake_of_the_connection_names_it(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, assert_sentences: AssertSentences
) -> None:
    def refused(**extra: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, extra=json.dumps(extra)))
        batch().execute(run.context())

    assert_sentences(refused, RayBatchFailException)


@pytest.mark.parametrize("extra", ['{"gpu_hour_price": "3.9"}', '{"gpu_hour_price": "{\\"*\\": 3.9}"}'])
def test_the_form_sends_text(ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, extra=extra))
    batch().execute(run.context())
    assert spec_of_job(ray)["gpu_hour_price"] == {"*": 3.9}
