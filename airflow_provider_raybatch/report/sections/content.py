# SPDX-License-Identifier: Apache-2.0
"""How do the answers look: samples, distribution of answers, lengths, finish reasons."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.last_run import LastRun
from airflow_provider_raybatch.contract.report import Bin, Report, Sample, SampleAnswer, StepAnswers
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report.comparison import figure
from airflow_provider_raybatch.report.elements import (
    Content,
    node,
    section,
    side_by_side,
    words_of,
)
from airflow_provider_raybatch.report.plots import bars, histogram
from airflow_provider_raybatch.report.sections.figures import figure_table
from airflow_provider_raybatch.report.sections.rows import asked, row_article

_MOST_ANSWERS = 30
_FINISHED = {
    "stop": "stop: the model ended",
    "length": "length: cut off at the limit of tokens",
    "tool_calls": "tool_calls: the model calls a tool",
}


def content(report: Report) -> Element | None:
    """The section, ``None`` where there are no answers."""
    parts: list[Content] = [
        node("p", "Content of rows is left out of this report.")
        if report.rows and not report.content
        else None
    ]
    for one in report.told:
        tables = [part for part in (_answers(one), _finish_reasons(one, report.last_run)) if part is not None]
        about = [side_by_side(tables) if tables else None, _lengths(one)]
        if one.step is not None and any(part is not None for part in about):
            parts.append(node("h3", "Step ", words_of(one.step)))
        parts += about
    if report.samples:
        many = len(report.samples)
        parts.append(node("h3", "One sample" if many == 1 else f"{many} samples"))
        parts += [_sample(one) for one in report.samples]
    if all(part is None for part in parts):
        return None
    return section("answers", "How do the answers look?", parts)


def _answers(told: StepAnswers) -> Element | None:
    if not told.answers:
        return None
    rows: list[tuple[Content, float]] = [
        (words_of(one.text, 200) if one.text.strip() else node("em", "empty"), one.rows)
        for one in told.answers[:_MOST_ANSWERS]
    ]
    left = told.answers[_MOST_ANSWERS:]
    if left:
        rows.append((f"{len(left):,} other answers", sum(one.rows for one in left)))
    return bars("Answers", ("Answer", "Rows"), rows)


def _finish_reasons(told: StepAnswers, last: LastRun | None) -> Element | None:
    now = told.finish_reasons
    before = last.finish_reasons if last is not None and told.step is None else {}
    names = sorted({*now, *before}, key=lambda name: -now.get(name, 0))
    if not now:
        return None
    has_last = bool(before)
    picked = [
        figure(
            _FINISHED.get(name, name),
            now.get(name, 0),
            before.get(name, 0),
            wanted="less" if name == "length" else "",
            has_last=has_last,
        )
        for name in names
    ]
    return figure_table("Why answers ended (finish reason)", picked)


def _lengths(told: StepAnswers) -> Element | None:
    found = [("Length of prompts", told.prompt_tokens), ("Length of answers", told.output_tokens)]
    shown = [histogram(title, "rows by tokens", list(map(_as_bar, bins))) for title, bins in found if bins]
    return node("div", shown, class_="plots") if shown else None


def _as_bar(one: Bin) -> tuple[float, float, float]:
    return one.first, one.last, one.rows


def _sample(one: Sample) -> Element:
    answers = [_answer(answer) for answer in one.answers]
    nothing = None if answers else node("p", "No step asked about this row.", class_="dim")
    return row_article(one.ordinal, one.id, answers, nothing, row=one.row)


def _answer(one: SampleAnswer) -> list[Content]:
    facts = [
        count_of(one.input_tokens, "prompt token") if one.input_tokens is not None else None,
        count_of(one.output_tokens, "generated token") if one.output_tokens is not None else None,
        f"finish reason {one.finish_reason}" if one.finish_reason else None,
    ]
    said = ", ".join(fact for fact in facts if fact)
    named = [] if one.step is None else [node("strong", words_of(f"Step {one.step}")), ": " if said else None]
    return [
        node("p", named, words_of(said), class_="dim") if named or said else None,
        asked(one.request, one.response),
    ]
