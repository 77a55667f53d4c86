# SPDX-License-Identifier: Apache-2.0
"""Each number of a report beside that of the task's last dataset, with the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.run_numbers import LastRun
from airflow_provider_raybatch.report import words

Text = Callable[["float | None"], str]
Wanted = Literal["more", "less", ""]
Meaning = Literal["better", "worse", ""]

_NOTABLE = 0.05
"""Part of a number; smaller changes are neither better nor worse."""
_TIMES = 10
"""A number that became this many times as large is said as a factor."""


@dataclass(frozen=True)
class Figure:
    """One number as texts.

    :param last: of the last dataset; ``None`` where there is none.
    :param change: such as ``+12 %``; empty where one of both is not known.
    """

    name: str
    now: str
    last: str | None = None
    change: str = ""
    meaning: Meaning = ""

    @property
    def is_unknown(self) -> bool:
        """Whether neither number is known."""
        return {self.now, self.last} <= {words.UNKNOWN, None}


@dataclass(frozen=True)
class Figures:
    """The numbers that a report has in common with its task's last dataset."""

    rows: Figure
    errors: Figure
    error_fraction: Figure
    resumed: Figure
    reused: Figure
    duplicates: Figure
    cost: Figure
    cost_per_thousand: Figure
    gpu_hours: Figure
    tokens_paid: Figure
    input_tokens: Figure
    output_tokens: Figure
    seconds: Figure
    tokens_per_second: Figure


def figure(
    name: str,
    now: float | None,
    last: float | None,
    text: Text = words.count,
    wanted: Wanted = "",
    has_last: bool = True,
) -> Figure:
    """One number beside the last one.

    :param wanted: whether more or less of it is better.
    :param has_last: whether there is a last dataset, be its number known or not.
    """
    if not has_last:
        return Figure(name, text(now))
    change, meaning = _change(now, last, text, wanted)
    return Figure(name, text(now), text(last), change, meaning)


def figures(report: Report) -> Figures:
    """The numbers of `report`."""
    last = report.last_run
    rate = report.timing.output_tokens_per_second or None
    empty = LastRun(rows=0, errors=0)
    before, has_last = last or empty, last is not None
    same_money = has_last and before.currency == report.currency
    counts = report.counts
    whole = report.state == "committed"
    now, then = _part(report.cost, report.rows, 1000), _part(before.cost, before.rows, 1000)

    def one(
        name: str, now: float | None, then: float | None, text: Text = words.count, wanted: Wanted = ""
    ) -> Figure:
        return figure(name, now, then, text, wanted if whole else "", has_last)

    def paid(name: str, now: float | None, then: float | None) -> Figure:
        if has_last and not same_money and words.known(then):
            return Figure(name, words.money(now, report.currency), words.money(then, before.currency))
        return one(name, now, then, lambda value: words.money(value, report.currency), "less")

    return Figures(
        rows=one("Good rows", report.rows, before.rows),
        errors=one("Failed rows", report.errors, before.errors, wanted="less"),
        error_fraction=_error_fraction(report, last),
        resumed=one("From earlier attempts and runs", counts.resumed if counts else None, before.resumed),
        reused=one("From the response store", counts.reused if counts else None, before.reused),
        duplicates=one("From equal rows", counts.duplicates if counts else None, before.duplicates),
        cost=paid("Cost", report.cost, before.cost),
        cost_per_thousand=paid("Cost of 1,000 good rows", now, then),
        gpu_hours=one("GPU time", report.gpu_seconds, before.gpu_seconds, words.hours, "less"),
        tokens_paid=one("Tokens paid", report.tokens_paid, before.tokens_paid, wanted="less"),
        input_tokens=one("Prompt tokens", _of_rows(report, report.tokens.input), before.input_tokens),
        output_tokens=one("Generated tokens", _of_rows(report, report.tokens.output), before.output_tokens),
        seconds=one("Time", report.seconds, before.seconds, words.seconds, "less"),
        tokens_per_second=one(
            "Generated tokens a second", rate, before.output_tokens_per_second, words.rate, "more"
        ),
    )


@dataclass(frozen=True)
class ColumnChange:
    """A column that only one of both datasets has, or that has another type."""

    name: str
    now: str | None
    last: str | None


def column_changes(now: Mapping[str, str], last: LastRun | None) -> list[ColumnChange]:
    """What changed in the schema, in the order of the columns; those that are gone come last."""
    if last is None or last.columns is None or not now:
        return []
    names = dict.fromkeys((*now, *last.columns))
    pairs = (ColumnChange(name, now.get(name), last.columns.get(name)) for name in names)
    return [pair for pair in pairs if pair.now != pair.last]


def _of_rows(report: Report, tokens: int) -> int | None:
    """Tokens of the delivered rows; a job that delivered none may not have counted them."""
    return tokens if tokens or (report.state == "committed" and report.rows is not None) else None


def _part(value: float | None, of: int | None, times: float = 1) -> float | None:
    if value is None or not of or not words.known(value) or not words.known(of):
        return None
    return times * value / of


def _error_fraction(report: Report, last: LastRun | None) -> Figure:
    name = "Error rate"
    now = _part(report.errors, (report.rows or 0) + (report.errors or 0))
    if last is None:
        return Figure(name, words.percent(now))
    then = _part(last.errors, last.rows + last.errors)
    texts = words.percent(now), words.percent(then)
    if now is None or then is None:
        return Figure(name, *texts)
    if abs(now - then) < 5e-4:
        return Figure(name, *texts, "same")
    points = words.signed(f"{abs(100 * (now - then)):.1f} points", now > then)
    if report.state != "committed":
        return Figure(name, *texts, points)
    return Figure(name, *texts, points, "worse" if now > then else "better")


def _change(now: float | None, last: float | None, text: Text, wanted: str) -> tuple[str, Meaning]:
    if now is None or last is None or not words.known(now) or not words.known(last):
        return "", ""
    if now == last:
        return "same", ""
    grown = now > last
    notable = not last or abs(now - last) >= _NOTABLE * abs(last)
    meaning: Meaning = ""
    if wanted and notable:
        meaning = "better" if grown == (wanted == "more") else "worse"
    if not last:
        return words.signed(text(abs(now)), grown), meaning
    if now >= _TIMES * last > 0:
        return f"{words.rate(now / last)}x", meaning
    part = words.percent(abs(now - last) / abs(last))
    return part if part.startswith("under") else words.signed(part, grown), meaning
