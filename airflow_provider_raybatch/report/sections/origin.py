# SPDX-License-Identifier: Apache-2.0
"""How it was made: what was asked for, the plan with its reasons, columns, versions, places."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report.elements import (
    Content,
    block,
    folded,
    node,
    section,
    side_by_side,
    table,
    words_of,
)

_LONG = 100
_MANY = 30
_MOST_COLUMNS = 500
"""That are listed: a browser shows a table of thousands slowly."""


def origin(report: Report) -> Element:
    """The section."""
    sampling = _arguments("Sampling, merged with the model's own defaults", report.effective_sampling)
    return section(
        "origin",
        "How was it made?",
        side_by_side(_arguments("What was asked for", report.arguments), sampling),
        _plan(report.plan),
        side_by_side(_columns(report.columns), _arguments("Versions", report.versions)),
        _places(report),
    )


def _arguments(caption: str, values: Mapping[str, Any]) -> Element | None:
    rows = [(words_of(name), value_of(value)) for name, value in values.items()]
    return _table(caption, ("Name", "Value"), rows) if rows else None


def _plan(plan: Mapping[str, Any]) -> Element | None:
    if not plan:
        return None
    rows = [
        (words_of(name), value_of(value), words_of(reason, 1000)) for name, value, reason in plan_rows(plan)
    ]
    return _table("Plan: each size with its reason", ("Size", "Value", "Reason"), rows)


def plan_rows(plan: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Name, value and reason of each size; those of the engine have its name before theirs."""
    found: list[tuple[str, Any, str]] = []
    for name, one in plan.items():
        if isinstance(one, Mapping) and "value" in one:
            found.append((f"{prefix}{name}", one["value"], str(one.get("reason") or "")))
        elif isinstance(one, Mapping) and not prefix:
            found += plan_rows(one, f"{name}: ")
        else:
            found.append((f"{prefix}{name}", one, ""))
    return found


def _columns(columns: Mapping[str, str]) -> Element | None:
    first = islice(columns.items(), _MOST_COLUMNS)
    rows = [(words_of(name), words_of(kind)) for name, kind in first]
    more = len(columns) - len(rows)
    caption = f"{count_of(len(columns), 'column')} of the dataset"
    caption += f"; {count_of(more, 'more is', 'more are')} in report.json" if more else ""
    return _table(caption, ("Column", "Type"), rows) if rows else None


def _places(report: Report) -> Element:
    task = report.task
    named = {
        "Dataset": report.uri,
        "Manifest": report.manifest_uri,
        "Failed rows": report.dead_letter_uri,
        "Format": report.format,
        "DAG": task.dag_id,
        "Task": task.task_id,
        "Run": task.run_id,
        "Map index": None if task.map_index < 0 else str(task.map_index),
        "Ray job": report.submission_id,
        "Made at": report.created_at,
    }
    places = {name: words_of(text, 2000) for name, text in named.items() if text}
    rows = [(name, node("code", text, class_="copied")) for name, text in places.items()]
    return table("Places and names", ("What", "Where"), rows)


def _table(caption: str, heads: tuple[str, ...], rows: Sequence[tuple[Content, ...]]) -> Element:
    whole = table(caption, heads, rows)
    return whole if len(rows) <= _MANY else folded(caption, whole)


def value_of(value: Any) -> Element:
    """A value of an argument: text as it is, other values as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > _LONG or "\n" in text:
        return block(text)
    return node("code", words_of(text)) if text else node("em", "empty")
