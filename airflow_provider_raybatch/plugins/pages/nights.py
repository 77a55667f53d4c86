# SPDX-License-Identifier: Apache-2.0
"""The last nights of a task as plots and as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.links.report import PREFIX, report_path
from airflow_provider_raybatch.plugins.nights import Night
from airflow_provider_raybatch.plugins.pages.frame import Frame
from airflow_provider_raybatch.plugins.task_key import TaskInstance
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.elements import (
    Content,
    document,
    node,
    number,
    section,
    table,
    words_of,
)
from airflow_provider_raybatch.report.plots import line_plot

_HEADS = ("Night", "State", "Good rows", "Failed rows", "Tokens paid", "Time", "GPU time", "Cost")
_MOST_MAPPED = 10
"""Instances of a mapped task that a night links to."""


def nights_page(dag_id: str, task_id: str, nights: Sequence[Night], frame: Frame) -> str:
    """The page.

    :param nights: newest first.
    """
    header = node(
        "header",
        node("h1", "Last nights: ", words_of(task_id)),
        node("p", "DAG ", words_of(dag_id), class_="dim"),
    )
    if not nights:
        return document(
            f"{task_id}: last nights", header, node("p", "The task has not run yet.", class_="state")
        )
    said = (
        "Numbers are those that each run of the task returned; one that failed has its state and time alone."
    )
    if frame.framed:
        said += " To open a night's report, select the run and this task in Airflow."
    shown = table(count_of(len(nights), "night"), _HEADS, [_row(night, frame) for night in nights])
    plots = _plots(nights)
    since = node("p", "Over the time since the first of these nights.", class_="dim")
    course = section("course", "From night to night", since, node("div", plots, class_="plots"))
    return document(
        f"{task_id}: last nights",
        header,
        node("p", said, class_="dim"),
        section("nights", "Each night", shown),
        course if plots else None,
    )


def _row(night: Night, frame: Frame) -> tuple[Content, ...]:
    found = night.numbers
    return (
        _name(night, frame),
        node("span", night.state.replace("_", " "), class_=_class(night.state)),
        number(_count(found.rows)),
        number(_count(found.errors), "bad" if found.errors else ""),
        number(_count(found.tokens_paid)),
        number("" if night.seconds is None else words.seconds(night.seconds)),
        number("" if found.gpu_seconds is None else words.hours(found.gpu_seconds)),
        number("" if found.cost is None else words.money(found.cost, found.currency)),
    )


def _count(value: float | None) -> str:
    return "" if value is None else words.count(value)


def _class(state: str) -> str:
    return {"success": "good", "failed": "bad", "upstream_failed": "bad"}.get(state, "dim")


def _name(night: Night, frame: Frame) -> Content:
    when = night.at.strftime("%Y-%m-%d %H:%M") if night.at is not None else night.run_id
    first = night.instances[0].ti
    if first.map_index < 0:
        return frame.link(_path(first), words_of(when))
    listed = [frame.link(_path(one.ti), f"[{one.ti.map_index}] ") for one in night.instances[:_MOST_MAPPED]]
    left = len(night.instances) - _MOST_MAPPED
    return [words_of(when), " ", listed, f"and {left} more" if left > 0 else None]


def _path(ti: TaskInstance) -> str:
    return PREFIX + report_path(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)


def _plots(nights: Sequence[Night]) -> list[Content]:
    currencies = {night.numbers.currency for night in nights if night.numbers.cost}
    wanted: list[tuple[str, str, Callable[[Night], float | None]]] = [
        ("Good rows", "rows", lambda night: night.numbers.rows),
        ("Failed rows", "rows", lambda night: night.numbers.errors),
        ("Tokens paid", "input and output", lambda night: night.numbers.tokens_paid),
        ("Time", "s", lambda night: night.seconds),
    ]
    if len(currencies) == 1:
        unit = next(iter(currencies)) or "in the unit of its price"
        wanted.append(("Cost", unit, lambda night: night.numbers.cost))
    return [plot for title, unit, value in wanted if (plot := _plot(title, unit, value, nights)) is not None]


def _plot(title: str, unit: str, value: Callable[[Night], float | None], nights: Sequence[Night]) -> Content:
    """A number over the nights; ``None`` where fewer than two have it."""
    timed = [(night.at, value(night)) for night in nights if night.at is not None]
    timed.sort(key=lambda one: one[0])
    if sum(number is not None for _, number in timed) < 2:
        return None
    points = [((at - timed[0][0]).total_seconds(), number) for at, number in timed]
    return line_plot(title, unit, points, whole=unit == "rows")
