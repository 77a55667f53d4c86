# SPDX-License-Identifier: Apache-2.0
"""Plots have axes that people read, and hold with any numbers."""

from __future__ import annotations

import math
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

import pytest

from airflow_provider_raybatch.report.plots import (
    Plot,
    bar,
    bars,
    histogram,
    line_plot,
    number_axis,
    stacked,
    time_axis,
)
from airflow_provider_raybatch.report.rendering import environment

TINY, HUGE = 1e-300, 1e308
SERIES: dict[str, list[tuple[float, float | None]]] = {
    "none": [],
    "one": [(3.0, 7.0)],
    "all_zero": [(0.0, 0.0), (1.0, 0.0)],
    "all_equal": [(0.0, 5.0), (1.0, 5.0)],
    "tiny": [(0.0, TINY), (1.0, 2 * TINY)],
    "huge": [(0.0, HUGE), (HUGE, HUGE)],
    "gaps": [(0.0, 1.0), (1.0, None), (2.0, 3.0), (3.0, math.nan), (4.0, math.inf), (5.0, 1.0), (6.0, 2.0)],
    "at_once": [(0.0, 1.0), (0.0, 2.0)],
}


def part(name: str, *given: Any) -> Element:
    """What a macro of the templates draws."""
    return fromstring(getattr(environment().get_template("parts.jinja").module, name)(*given))


def plot(found: Plot) -> Element:
    (figure,) = part("plots", [found])
    return figure


@pytest.mark.parametrize("longest", [1, 2, 3, 6, 11])
def test_lengths_have_whole_marks(longest: int) -> None:
    drawn = plot(histogram("Length of answers", "rows by tokens", [(n, n, 3) for n in range(longest)]))
    assert not [one.text for one in drawn.iter("text") if "." in str(one.text)]


def numbers(drawn: Element) -> list[float]:
    """Every number that says where something is."""
    names = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height")
    found = [float(one.get(name, "0")) for one in drawn.iter() for name in names]
    for one in drawn.iter("path"):
        words = "".join(" " if letter in "MLZ" else letter for letter in one.get("d", ""))
        found += map(float, words.split())
    return found


@pytest.mark.parametrize("name", SERIES)
def test_any_series_stays_in_its_frame(name: str) -> None:
    drawn = plot(line_plot("Tokens a second", "generated", SERIES[name]))
    assert all(0 <= one <= 420 for one in numbers(drawn))
    assert "nan" not in tostring(drawn, "unicode")


def test_a_gap_parts_the_line() -> None:
    drawn = plot(line_plot("Rows", "rows", SERIES["gaps"]))
    curves = [one for one in drawn.iter("path") if one.get("class") == "curve"]
    assert (len(curves), len(list(drawn.iter("circle")))) == (1, 2)


def test_a_plot_is_told_to_screen_readers() -> None:
    picture = plot(line_plot("Rows in flight", "rows in engines", [(0, 2.0), (1, 4.0)]))[1]
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == "Rows in flight: 2 to 4 rows in engines, 3 on average"
    assert [one.tag for one in picture][:2] == ["title", "desc"]


@pytest.mark.parametrize(
    ("largest", "marks"),
    [
        (0, ["0", "0.25", "0.5", "0.75", "1"]),
        (7, ["0", "2", "4", "6", "8"]),
        (100, ["0", "25", "50", "75", "100"]),
        (6_543, ["0", "2 k", "4 k", "6 k", "8 k"]),
        (2_500_000, ["0", "1 M", "2 M", "3 M"]),
        (0.0004, ["0", "0.0001", "0.0002", "0.0003", "0.0004"]),
    ],
)
def test_marks_of_numbers_are_round(largest: float, marks: list[str]) -> None:
    assert [text for _, text in number_axis(largest).marks] == marks


@pytest.mark.parametrize("largest", [1, 2, 3, 5, 10, 513, 99_999])
def test_marks_of_counts_are_whole(largest: int) -> None:
    assert all(value == round(value) for value, _ in number_axis(largest, whole=True).marks)


@pytest.mark.parametrize(
    ("largest", "marks"),
    [
        (0.5, ["0 s", "0.1 s", "0.2 s", "0.3 s", "0.4 s", "0.5 s"]),
        (42, ["0 s", "10 s", "20 s", "30 s", "40 s"]),
        (437, ["0 min", "2 min", "4 min", "6 min"]),
        (7_300, ["0 min", "30 min", "60 min", "90 min", "120 min"]),
        (90_000, ["0 h", "6 h", "12 h", "18 h", "24 h"]),
        (1e6, ["0 d", "3 d", "6 d", "9 d"]),
    ],
)
def test_marks_of_times_have_the_fitting_unit(largest: float, marks: list[str]) -> None:
    assert [text for _, text in time_axis(largest).marks] == marks


@pytest.mark.parametrize("largest", [TINY, 1e-9, 1, 1e9, 1e250, HUGE, math.inf, math.nan, -1])
def test_no_axis_has_many_marks(largest: float) -> None:
    for axis in (number_axis(largest), number_axis(largest, whole=True), time_axis(largest)):
        assert len(axis.marks) <= 7
        assert 0 <= axis.at(largest) <= 1 or math.isnan(largest)


def test_bars_are_as_wide_as_their_numbers() -> None:
    drawn = part("bars", "Answers", "Answer", "Rows", bars([("a", 8), ("b", 2)]))
    widths = [float(one.get("width", "")) for one in drawn.iter("rect")]
    assert widths == [100, 25]


def test_parts_of_a_bar_follow_each_other() -> None:
    parts = [(one.get("x"), one.get("width")) for one in part("bar", bar([(3, "good"), (1, "bad")], 4))]
    assert parts == [("0", "75"), ("75", "25")]
    assert numbers(part("bar", bar([(0, "good"), (math.nan, "bad")], 0))) is not None


def test_phases_have_their_times_beside_their_colours() -> None:
    found = part("stacked", "Until the first request: 4 s", "Phase", stacked([("a", 1), ("b", 3)]))
    drawn = "".join(found.itertext())
    assert "a1.0 s25 %" in drawn
    assert "b3.0 s75 %" in drawn


def test_lengths_of_one_token_are_seen() -> None:
    drawn = plot(histogram("Length of answers", "rows by tokens", [(1, 1, 7), (2, 2, 1), (500, 500, 1)]))
    assert all(float(one.get("width", "0")) >= 1 for one in drawn.iter("rect"))
    assert "1 to 1: 7 rows" in [one.text for one in drawn.iter("title")]
