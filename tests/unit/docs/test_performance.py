# SPDX-License-Identifier: Apache-2.0
"""The page of ratios has what the runs have."""

from __future__ import annotations

import statistics

import pytest

from ...support.programs import ROOT, program

RATIOS = program("benchmarks/ratios.py", "ratios_page")
MADE = RATIOS.runs()


def test_the_page_is_current() -> None:
    assert RATIOS.PAGE.read_text(encoding="utf-8") == RATIOS.page(MADE), "run python benchmarks/ratios.py"


def test_every_ratio_has_its_line() -> None:
    assert {name for one in MADE for name in one.ratios} == {*RATIOS.TARGETS}


@pytest.mark.parametrize("one", MADE, ids=lambda one: f"{one.date} {one.made_by}")
def test_a_ratio_is_the_median_of_its_values(one: object) -> None:
    each, ratios = one.each, one.ratios  # type: ignore[attr-defined]
    assert ratios == {name: round(statistics.median(values), 3) for name, values in each.items()}


def test_what_made_a_run_is_there() -> None:
    assert all((ROOT / "benchmarks" / one.made_by).is_file() for one in MADE)
