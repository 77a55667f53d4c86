# SPDX-License-Identifier: Apache-2.0
"""Plots as places in a picture as wide as a narrow screen's pixels, so that its texts stay readable there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words

COLOURS = "abcdefghij"
_WIDTH, _HEIGHT = 420.0, 160.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 14.0, 10.0, 24.0
_MOST_BARS = 60
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))

Point = tuple[float, "float | None"]
Places = Sequence[Sequence[str]]
"""Numbers of one shape each, as SVG has them, and its text or colour last."""


@dataclass(frozen=True)
class Plot:
    """What a plot has, drawn by ``templates/parts.jinja``.

    :param said: the same in words.
    :param lines: x1, x2, y1 and y2 of axes and grid.
    :param marks: x, y, anchor and text.
    :param curves: paths: the area below, then the line.
    :param dots: x and y of single points.
    :param bars: x, y, width, height and text.
    """

    title: str
    unit: str
    said: str
    lines: Places
    marks: Places
    curves: Places = ()
    dots: Places = ()
    bars: Places = ()


def line_plot(title: str, unit: str, points: Sequence[Point], whole: bool = False) -> Plot:
    """A number over the seconds of a job.

    :param points: seconds and values; ``None`` is a gap.
    :param whole: whether values are whole numbers.
    """
    runs = _runs(points)
    good = [point for run in runs for point in run]
    across = time_axis(max((x for x, _ in good), default=0))
    up = number_axis(max((y for _, y in good), default=0), whole=whole)
    placed = [[(_at(_x(across, x)), _at(_y(up, y))) for x, y in run] for run in runs]
    curves = [_curve(run) for run in placed if len(run) > 1]
    dots = [run[0] for run in placed if len(run) == 1]
    return Plot(title, unit, _said(unit, [y for _, y in good]), *_frame(across, up), curves, dots)


def histogram(title: str, unit: str, bars: Sequence[tuple[float, float, float]]) -> Plot:
    """How many have which length.

    :param bars: first and last length of each, and how many.
    """
    bars = [bar for bar in bars if all(map(words.known, bar))][:_MOST_BARS]
    across = number_axis(max((last + 1 for _, last, _ in bars), default=0), 5, whole=True, exact=True)
    up = number_axis(max((rows for *_, rows in bars), default=0), whole=True)
    shapes = []
    for first, last, rows in bars:
        left, right, top = _x(across, first), _x(across, last + 1), _y(up, rows)
        label = f"{words.count(first)} to {words.count(last)}: {count_of(round(rows), 'row')}"
        sizes = (left, top, max(1.0, right - left - 0.5), _HEIGHT - _BOTTOM - top)
        shapes.append((*map(_at, sizes), label))
    rows = sum(bar[2] for bar in bars)
    span = f"{words.count(bars[0][0])} to {words.count(max(bar[1] for bar in bars))}" if bars else "none"
    said = f"{count_of(round(rows), 'row')}, {span} {unit}"
    return Plot(title, unit, said, *_frame(across, up), bars=shapes)


def bar(parts: Iterable[tuple[float, str]], whole: float) -> Places:
    """Parts of a bar of the width 100, each with its colour: x, width and colour."""
    shapes, left = [], 0.0
    for value, colour in parts:
        width = 100 * (value / whole) if whole > 0 and words.known(value) and words.known(whole) else 0.0
        shapes.append((_at(left), _at(width), colour))
        left += width
    return shapes


def bars(rows: Sequence[tuple[str, float]], colour: str = "a") -> list[tuple[str, float, Places]]:
    """Names and numbers, each with a bar beside the largest."""
    largest = max((value for _, value in rows), default=0)
    return [(name, value, bar([(value, colour)], largest)) for name, value in rows]


@dataclass(frozen=True)
class Stacked:
    """Amounts that follow each other.

    :param bar: all of them as parts of one.
    :param parts: name, amount, its part of the whole, and colour.
    """

    bar: Places
    parts: Sequence[tuple[str, float, float, str]]


def stacked(amounts: Sequence[tuple[str, float]]) -> Stacked:
    """Amounts above 0 with their names, each in a colour of its own."""
    total = sum(value for _, value in amounts)
    parts = [
        (name, value, value / total, COLOURS[place % len(COLOURS)])
        for place, (name, value) in enumerate(amounts)
    ]
    return Stacked(bar([(value, colour) for _, value, _, colour in parts], total), parts)


def _frame(across: Axis, up: Axis) -> tuple[Places, Places]:
    """Lines and marks of both axes."""
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    lines, marks = [], []
    for value, text in up.marks:
        y = _y(up, value)
        lines.append([*map(_at, (_LEFT, right, y, y))])
        marks.append([_at(_LEFT - 6), _at(y + 4), "end", text])
    for value, text in across.marks:
        x = _x(across, value)
        lines.append([*map(_at, (x, x, bottom, bottom + 4))])
        marks.append([_at(x), _at(bottom + 17), "end" if x > _WIDTH - 30 else "middle", text])
    return lines, marks


def _curve(places: Sequence[tuple[str, str]]) -> tuple[str, str]:
    path, floor = "L".join(map(" ".join, places)), _at(_HEIGHT - _BOTTOM)
    return f"M{places[0][0]} {floor}L{path}L{places[-1][0]} {floor}Z", f"M{path}"


def _runs(points: Iterable[Point]) -> list[list[tuple[float, float]]]:
    """The points between gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if y is None or not words.known(y) or not words.known(x):
            found.append([])
        else:
            found[-1].append((x, y))
    return [run for run in found if run]


def _said(unit: str, values: Sequence[float]) -> str:
    if not values:
        return "no values"
    mean = math.fsum(value / len(values) for value in values)
    return f"{words.rate(min(values))} to {words.rate(max(values))} {unit}, {words.rate(mean)} on average"


def _x(axis: Axis, value: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * axis.at(value)


def _y(axis: Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * axis.at(value)


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Axis:
    """An axis from 0 to `end`, with marks at values and their texts."""

    end: float
    marks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """The place of a value, from 0 to 1."""
        return min(1.0, max(0.0, value / self.end))


def number_axis(largest: float, most: int = 4, whole: bool = False, exact: bool = False) -> Axis:
    """An axis of numbers from 0 to at least `largest`.

    :param most: steps.
    :param whole: whether marks are whole numbers.
    :param exact: whether the axis ends at `largest`, be there a mark or not.
    """
    if not 0 < largest < 1e300:
        largest = 1.0
    power = 10 ** math.floor(math.log10(largest / most))
    step = next(
        (times * power for times in (1, 2, 2.5, 5, 10) if times * power * most >= largest), 10 * power
    )
    if whole and step < 1:
        step = 1.0
    elif whole:
        step = math.ceil(step) if step < 10 else step
    count = int(largest / step) if exact else max(1, math.ceil(largest / step - 1e-9))
    marks = tuple((place * step, words.short(place * step)) for place in range(count + 1))
    return Axis(largest if exact else count * step, marks)


def time_axis(largest: float, most: int = 5) -> Axis:
    """An axis of seconds from 0, in the unit that fits."""
    if not 0 < largest < 1e300:
        largest = 1.0
    if largest < 2:
        found = number_axis(largest, most)
        return Axis(found.end, tuple((value, f"{text} s") for value, text in found.marks))
    days = math.ceil(largest / 86400 / most)
    step = next((one for one in _TIMES if one * most >= largest), 86400 * days)
    size, unit = next(((size, unit) for size, unit in _UNITS if step >= size), (1, "s"))
    marks = tuple(
        (place * step, f"{words.short(place * step / size)} {unit}")
        for place in range(int(largest / step) + 1)
    )
    return Axis(largest, marks)
