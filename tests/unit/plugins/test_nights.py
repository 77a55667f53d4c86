# SPDX-License-Identifier: Apache-2.0
"""The last nights of a task: numbers out of XComs, which are typed, and states out of Airflow."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from airflow_provider_raybatch.plugins.nights import Instance, Numbers, instance_of, nights_of, numbers_of
from airflow_provider_raybatch.plugins.pages import Frame, nights_page

RESULT = {
    "rows": 3, "errors": 1, "tokens": {"input": 5, "output": 6}, "tokens_paid": 4, "seconds": 7.5,
    "gpu_seconds": 8.0, "cost": 1.5, "currency": "EUR",
}  # fmt: skip


def known(run_id: str = "r1", map_index: int = -1, **fields: Any) -> dict[str, Any]:
    """What Airflow's API says of a task instance."""
    return {
        "dag_id": "d", "task_id": "t", "dag_run_id": run_id, "map_index": map_index, "state": "success",
        "duration": 60.0, "run_after": "2026-11-01T02:00:00Z", **fields,
    }  # fmt: skip


def instance(*args: Any, numbers: Numbers | None = None, **fields: Any) -> Instance:
    found = instance_of(known(*args, **fields))
    assert found is not None
    return Instance(found.ti, found.at, found.state, found.duration, numbers or Numbers())


def test_numbers_of_a_result() -> None:
    expected = Numbers(
        rows=3, errors=1, tokens_paid=4, seconds=7.5, gpu_seconds=8.0, cost=1.5, currency="EUR"
    )
    assert numbers_of(RESULT) == expected


@pytest.mark.parametrize(
    "value",
    [
        "3", "<script>alert(1)</script>", True, -1, math.nan, math.inf, -math.inf, 1e16, 10**400, [3],
        {"n": 3}, None, "s3://elsewhere/report.json",
    ],
)  # fmt: skip
def test_a_value_that_is_no_number_of_rows(value: Any) -> None:
    """Whoever may edit XComs puts nothing but numbers onto the page."""
    given = dict.fromkeys(
        ("rows", "errors", "tokens_paid", "seconds", "gpu_seconds", "cost", "currency"), value
    )
    assert numbers_of(given) == Numbers()
    assert numbers_of(value) == Numbers()


@pytest.mark.parametrize("currency", ["eur", "EURO", "E<b>", "\u202eEUR", 5, None])
def test_a_currency_is_three_letters(currency: Any) -> None:
    assert numbers_of({"cost": 1, "currency": currency}).currency is None


def test_a_mapped_task_is_summed() -> None:
    found = nights_of([
        instance(map_index=1, numbers=numbers_of(RESULT)),
        instance(map_index=0, numbers=numbers_of({**RESULT, "seconds": 9})),
        instance(map_index=2, state="failed"),
        instance("r0", numbers=numbers_of(RESULT)),
    ])
    assert [night.run_id for night in found] == ["r1", "r0"]
    assert found[0].numbers == Numbers(
        rows=6, errors=2, tokens_paid=8, gpu_seconds=16.0, cost=3.0, currency="EUR"
    )
    assert found[0].seconds == 9
    assert found[0].state == "failed"
    assert [one.ti.map_index for one in found[0].instances] == [0, 1, 2]


def test_amounts_in_two_currencies_have_no_sum() -> None:
    dollars = numbers_of({**RESULT, "currency": "USD"})
    found = nights_of([
        instance(map_index=0, numbers=numbers_of(RESULT)),
        instance(map_index=1, numbers=dollars),
    ])
    assert found[0].numbers.cost is None


@pytest.mark.parametrize(("gpu_seconds", "own", "cost"), [(8.0, None, None), (0.0, None, 1.5), (0, 0.0, 1.5)])
def test_a_sum_of_costs_has_all_gpus(gpu_seconds: float, own: float | None, cost: float | None) -> None:
    """One instance ran where a GPU has no price: what the others cost is not what the night did."""
    unknown = numbers_of({**RESULT, "gpu_seconds": gpu_seconds, "cost": own, "currency": None})
    found = nights_of([
        instance(map_index=0, numbers=numbers_of(RESULT)),
        instance(map_index=1, numbers=unknown),
    ])
    assert (found[0].numbers.cost, found[0].numbers.rows) == (cost, 6)


def test_a_night_that_is_not_whole_is_left_out() -> None:
    """Only so many instances are asked for, and the oldest night may have more."""
    listed = [instance("r1", 0), instance("r1", 1), instance("r0", 0), instance("r0", 1)]
    assert [night.run_id for night in nights_of(listed, cut=True)] == ["r1"]
    assert [night.run_id for night in nights_of(listed[:2], cut=True)] == ["r1"]
    assert len(nights_of([instance(f"r{number}") for number in range(30)], cut=True)) == 25


@pytest.mark.parametrize("wrong", [{"dag_run_id": None}, {"map_index": "0"}, {"map_index": None}])
def test_an_answer_that_is_not_usable(wrong: dict[str, Any]) -> None:
    assert instance_of({**known(), **wrong}) is None


def test_odd_answers_still_show() -> None:
    odd = instance_of(known(state=None, duration="x", run_after="yesterday"))
    assert odd is not None
    page = nights_page("d", "<t>", nights_of([odd]), Frame())
    assert "no state" in page
    assert "<t>" not in page


def test_a_page_of_failed_and_good_nights() -> None:
    nights = nights_of([
        instance("r3", state="running", duration=None),
        instance("r2", state="failed"),
        instance("r1", numbers=numbers_of(RESULT)),
    ])
    page = nights_page("d", "t", nights, Frame())
    heads = re.findall(r"<th scope=[^>]*>([^<]*)</th>", page)
    *_, last = re.findall("<tr>.*?</tr>", page, re.DOTALL)
    cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall("<t[dh][^>]*>(.*?)</t[dh]>", last)]
    assert dict(zip(heads, cells, strict=True)) == {
        "Night": "2026-11-01 02:00", "State": "success", "Good rows": "3", "Failed rows": "1",
        "Tokens paid": "4", "Time": "7.5 s", "GPU time": "8 s", "Cost": "1.50 EUR",
    }  # fmt: skip
    assert 'href="/raybatch/dags/d/runs/r2/tasks/t/-1"' in page
    assert '<span class="bad">failed</span>' in page
    assert page.count("<figure>") == 1  # of the time, which two nights have
    framed = nights_page("d", "t", nights, Frame(framed=True))
    assert "<a " not in framed
    assert "select the run" in framed


def test_plots_of_two_nights() -> None:
    good = numbers_of(RESULT)
    nights = nights_of([
        instance("r2", numbers=good),
        instance("r1", numbers=good, logical_date="2026-10-30T02:00:00Z"),
    ])
    page = nights_page("d", "t", nights, Frame())
    assert page.count("<figure>") == 5
    assert " h</text>" in page
    assert "2026-10-30 02:00" in page


def test_a_task_that_has_not_run() -> None:
    assert "has not run yet" in nights_page("d", "t", [], Frame())


def test_a_night_of_many_instances_links_to_some() -> None:
    nights = nights_of([instance(map_index=number) for number in range(40)])
    page = nights_page("d", "t", nights, Frame())
    assert page.count("/tasks/t/") == 10
    assert "and 30 more" in page
