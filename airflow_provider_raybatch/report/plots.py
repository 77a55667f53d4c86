# SPDX-License-Identifier: Apache-2.0
"""Plots as SVG: drawn in units of a narrow screen's pixels, so that their texts stay readable there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.elements import Content, node, number, table, words_of

COLOURS = "abcdefghij"
_WIDTH, _HEIGHT = 420.0, 160.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 50.0, 14.0, 10.0, 24.0
_MOST_BARS = 60
_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"))

Point = tuple[float, "float | None"]


def line_plot(title: str, unit: str, points: Sequence[Point], whole: bool = False) -> Element:
    """A number over the seconds of a job.

    :param points: seconds and values; ``None`` is a gap.
    :param whole: whether values are whole numbers.
    """
    good = [(x, y) for x, y in points if words.known(x) and y is not None and words.known(y)]
    across = time_axis(max((x for x, _ in good), default=0))
    up = number_axis(max((y for _, y in good), default=0), whole=whole)
    lines = [_curve(run, across, up) for run in _runs(points)]
    said = _said(unit, [y for _, y in good])
    return _figure(title, unit, said, [_frame(across, up), lines])


def histogram(title: str, unit: str, bars: Sequence[tuple[float, float, float]]) -> Element:
    """How many have which length.

    :param bars: first and last length of each, and how many.
    """
    bars = [bar for bar in bars if all(map(words.known, bar))][:_MOST_BARS]
    across = number_axis(max((last + 1 for _, last, _ in bars), default=0), 5, whole=True, exact=True)
    up = number_axis(max((rows for *_, rows in bars), default=0), whole=True)
    shapes = []
    for first, last, rows in bars:
        left, right = _x(across, first), _x(across, last + 1)
        top = _y(up, rows)
        label = f"{words.count(first)} to {words.count(last)}: {count_of(round(rows), 'row')}"
        shapes.append(
            node(
                "rect",
                node("title", label),
                x=_at(left),
                y=_at(top),
                width=_at(max(1.0, right - left - 0.5)),
                height=_at(_HEIGHT - _BOTTOM - top),
                class_="fill-a",
            )
        )
    rows = sum(bar[2] for bar in bars)
    span = f"{words.count(bars[0][0])} to {words.count(max(bar[1] for bar in bars))}" if bars else "none"
    return _figure(
        title, unit, f"{count_of(round(rows), 'row')}, {span} {unit}", [_frame(across, up), shapes]
    )


def bars(
    caption: str, heads: tuple[str, str], rows: Sequence[tuple[Content, float]], colour: str = "a"
) -> Element:
    """A table with a bar for each number, so that names may be of any length."""
    largest = max((value for _, value in rows), default=0)
    body = [
        (name, number(words.count(value)), node("td", bar([(value, colour)], largest), class_="bar"))
        for name, value in rows
    ]
    return table(caption, (*heads, ""), body)


def bar(parts: Iterable[tuple[float, str]], whole: float) -> Element:
    """A bar of parts, each with its colour, as wide as its place; the numbers stand beside it."""
    shapes, left = [], 0.0
    for value, colour in parts:
        width = 100 * (value / whole) if whole > 0 and words.known(value) and words.known(whole) else 0.0
        shapes.append(
            node("rect", x=_at(left), y="0", width=_at(width), height="10", class_=f"fill-{colour}")
        )
        left += width
    return node("svg", shapes, viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")


def stacked(caption: str, heads: tuple[str, str], parts: Sequence[tuple[str, float]]) -> Element:
    """Seconds that follow each other, as one bar and a table with what each colour is."""
    total = sum(value for _, value in parts)
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(parts))]
    coloured = [(name, value, colour) for (name, value), colour in zip(parts, colours, strict=True)]
    rows: list[tuple[Content, ...]] = [
        (
            [_swatch(colour), words_of(name)],
            number(words.seconds(value)),
            number(words.percent(value / total)),
        )
        for name, value, colour in coloured
    ]
    whole = node("div", bar([(value, colour) for _, value, colour in coloured], total), class_="whole")
    return node(
        "div", node("p", node("strong", caption)), whole, table("Parts of it", (*heads, "Part"), rows)
    )


def _swatch(colour: str) -> Element:
    shape = node("rect", width="10", height="10", class_=f"fill-{colour}")
    return node("svg", shape, viewBox="0 0 10 10", class_="swatch", aria_hidden="true")


def _figure(title: str, unit: str, said: str, drawn: Content) -> Element:
    picture = node(
        "svg", node("title", f"{title}, {unit}"), node("desc", said), drawn,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=f"{title}: {said}",
    )  # fmt: skip
    return node("figure", node("figcaption", title, " ", node("span", unit, class_="dim")), picture)


def _frame(across: Axis, up: Axis) -> Iterator[Content]:
    bottom = _HEIGHT - _BOTTOM
    for value, text in up.marks:
        y = _y(up, value)
        yield node("line", x1=_at(_LEFT), x2=_at(_WIDTH - _RIGHT), y1=_at(y), y2=_at(y), class_="grid")
        yield node("text", text, x=_at(_LEFT - 6), y=_at(y + 4), text_anchor="end")
    for value, text in across.marks:
        x = _x(across, value)
        yield node("line", x1=_at(x), x2=_at(x), y1=_at(bottom), y2=_at(bottom + 4), class_="grid")
        yield node(
            "text", text, x=_at(x), y=_at(bottom + 17), text_anchor="end" if x > _WIDTH - 30 else "middle"
        )


def _curve(run: Sequence[tuple[float, float]], across: Axis, up: Axis) -> Content:
    places = [(_x(across, x), _y(up, y)) for x, y in run]
    if len(places) == 1:
        (x, y), = places  # fmt: skip
        return node("circle", cx=_at(x), cy=_at(y), r="3.5", class_="dot")
    path = "L".join(f"{_at(x)} {_at(y)}" for x, y in places)
    floor = _at(_HEIGHT - _BOTTOM)
    under = f"M{_at(places[0][0])} {floor}L{path}L{_at(places[-1][0])} {floor}Z"
    return node("path", d=under, class_="area"), node("path", d=f"M{path}", class_="curve")


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
