# SPDX-License-Identifier: Apache-2.0
"""What did it cost: money, GPU time by type and price, tokens, and what was saved."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.manifest import Savings
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.comparison import Figure, Figures
from airflow_provider_raybatch.report.elements import (
    Content,
    node,
    number,
    section,
    side_by_side,
    table,
    words_of,
)
from airflow_provider_raybatch.report.plots import bars
from airflow_provider_raybatch.report.sections.figures import figure_table

_SAVED = {
    "resumed": "Earlier attempts and runs had the answers",
    "reused": "The response store had them",
    "duplicates": "Equal rows had them",
    "filled": "Forced by the choices, so not generated",
}
_MEANING = (
    "Prompt and generated tokens are those of the delivered rows; paid are those of all requests, with "
    "failed rows and earlier attempts. What was saved is priced at this run's own cost of a token."
)


def cost(report: Report, shown: Figures) -> Element:
    """The section."""
    saved = None if report.savings is None else _savings(report.savings, report.currency)
    money = side_by_side(_money(report, shown), _gpus(report))
    tokens = side_by_side(_tokens(report, shown), saved)
    said = node("p", _MEANING, class_="dim")
    return section("cost", "What did it cost?", _no_price(report), money, tokens, said)


def _money(report: Report, shown: Figures) -> Element:
    attempts = Figure("Attempts of this run", words.count(report.attempts))
    per_thousand = () if shown.cost_per_thousand.is_unknown else (shown.cost_per_thousand,)
    picked = [shown.cost, *per_thousand, shown.gpu_hours, attempts]
    return figure_table("Money and GPUs, over all attempts of this run", picked)


def _no_price(report: Report) -> Element | None:
    if report.cost is not None and report.gpu_seconds != 0:
        return None
    without = [kind for kind in report.gpu_seconds_by_type if kind not in report.gpu_hour_price]
    if not report.gpu_seconds and not without:
        return node("p", "No GPU was held; only GPUs have a price.")
    named = ", ".join(kind or "an unknown type" for kind in without) or "its GPUs"
    return node(
        "p",
        "The cost is not known: ",
        node("code", "gpu_hour_price"),
        " has no price for ",
        words_of(named),
        ".",
    )


def _gpus(report: Report) -> Element | None:
    held = report.gpu_seconds_by_type
    if not held:
        return None
    rows = []
    for kind, seconds in held.items():
        price = report.gpu_hour_price.get(kind)
        amount = None if price is None else seconds * price / 3600
        rows.append((
            words_of(kind or "type not known"),
            number(f"{seconds:,.1f}"),
            number(words.hours(seconds)),
            number("none set" if price is None else words.money(price, report.currency)),
            number(words.money(amount, report.currency)),
        ))
    return table("GPUs held by replicas", ("Type", "GPU seconds", "GPU time", "Price an hour", "Cost"), rows)


def _tokens(report: Report, shown: Figures) -> Element:
    tokens = report.tokens
    picked = [shown.tokens_paid]
    if report.tokens_lost:
        picked.append(Figure("of them lost with processes that were killed", words.count(report.tokens_lost)))
    picked.append(shown.input_tokens)
    if report.rows is not None and report.state == "committed":
        picked.append(Figure("of them from the prefix cache", words.count(tokens.cached)))
    picked.append(shown.output_tokens)
    if tokens.reasoning is not None:
        picked.append(Figure("of them before the answers (reasoning)", words.count(tokens.reasoning)))
    if report.tokens_generated is not None:
        picked.append(Figure("of them by this job", words.count(report.tokens_generated)))
    return figure_table("Tokens", picked)


def _savings(savings: Savings, currency: str | None) -> Element:
    rows: list[tuple[Content, float]] = [
        (text, value) for name, text in _SAVED.items() if (value := getattr(savings, name))
    ]
    if not rows:
        return node("p", "No tokens were saved: each row was asked and paid for.", class_="dim")
    total = count_of(int(sum(value for _, value in rows)), "token")
    worth = "" if not savings.cost else f", worth about {words.money(savings.cost, currency)}"
    return bars(f"Saved: {total}{worth}", ("Why", "Tokens"), rows, "d")
