# SPDX-License-Identifier: Apache-2.0
"""A report as one page, which opens from a folder or a bucket; it loads nothing and runs nothing.

Here is decided what each section shows, as plain values; ``templates/`` has a file for each section.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from airflow_provider_raybatch.contract.manifest import Savings
from airflow_provider_raybatch.contract.report import Bin, Report, StepAnswers
from airflow_provider_raybatch.contract.run_numbers import LastRun
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.comparison import Figure, Figures, column_changes, figure, figures
from airflow_provider_raybatch.report.plots import Plot, bar, bars, histogram, line_plot, stacked
from airflow_provider_raybatch.report.rendering import render

Shown = dict[str, Any]
"""By the names that a template asks for."""

_MOST_CHANGES, _MOST_ANSWERS, _MOST_COLUMNS = 50, 30, 500
"""That are listed: a browser shows a table of thousands slowly."""
_STEP_COUNTS = {
    "asked": "Asked",
    "skipped": "Skipped",
    "ok": "Good",
    "rejected": "Rejected",
    "errors": "Failed",
    "resumed": "Resumed",
    "reused": "Reused",
    "input_tokens": "Prompt tokens",
    "cached_tokens": "Of them cached",
    "output_tokens": "Generated tokens",
    "tokens_saved": "Tokens saved",
}
_ALWAYS = ("asked", "skipped", "ok", "rejected", "errors", "input_tokens", "output_tokens")
_FAILED_STEPS = {
    "read": "could not be read",
    "template": "could not be put into the prompt",
    "media": "has an image that could not be used",
    "tokenize": "could not be tokenised",
    "engine": "the engine refused or failed",
    "parse": "the answer is not the JSON that was asked for",
    "length": "the answer was cut off",
    "postprocess": "the user's function failed",
    "cancelled": "not asked before the batch was cancelled",
    "expired": "not asked before the completion window was over",
    "limit_reached": "not asked before the batch had used up a limit",
}
_SAVED = {
    "resumed": "Earlier attempts and runs had the answers",
    "reused": "The response store had them",
    "duplicates": "Equal rows had them",
    "filled": "Forced by the choices, so not generated",
}
_FINISHED = {
    "stop": "stop: the model ended",
    "length": "length: cut off at the limit of tokens",
    "tool_calls": "tool_calls: the model calls a tool",
}
_PHASES = {
    "source": "Source: listing, rows, ids",
    "prompt": "First prompts",
    "nodes": "Wait for nodes",
    "model": "Check of the model",
    "earlier": "Search for earlier answers",
    "claim": "Claim of the destination",
    "replica": "Start of replicas",
    "import": "Import of the engine",
    "engine": "Start of the engine",
    "rows": "First rows",
}


def report_page(report: Report) -> str:
    """The page as HTML; encode it in UTF-8."""
    task = report.task
    return render("report.jinja", title=f"{task.task_id}: report of {task.run_id}", **report_body(report))


def report_body(report: Report) -> Shown:
    """What ``report_body.jinja`` asks for, for pages that show more."""
    shown = figures(report)
    money = shown.gpu_hours if shown.cost.is_unknown else shown.cost
    title, why = ending(report)
    return {
        "report": report,
        "ending": title,
        "why": why,
        "made_at": moment(report.created_at),
        "last_made_at": moment((report.last_run and report.last_run.created_at) or ""),
        "tiles": [shown.rows, shown.errors, shown.tokens_paid, shown.seconds, money],
        "quality": quality(report, shown),
        "cost": _cost(report, shown),
        "answers": _answers(report),
        "speed": _speed(report, shown),
        "origin": _origin(report),
    }


def ending(report: Report) -> tuple[str, str]:
    """What happened to the dataset, and why; the second is empty for a dataset that is complete."""
    if report.state == "committed":
        unanswered = 0 if report.counts is None else report.counts.unanswered
        errors = (report.errors or 0) - unanswered
        failed = f", {words.count(errors)} failed" if errors else ""
        noun = "row" if report.rows == 1 else "rows"
        told = f"{words.count(report.rows)} good {noun}{failed}"
        if unanswered:
            return f"The batch ended early: {told}, {words.count(unanswered)} not asked before.", ""
        return f"The dataset is complete: {told}.", ""
    if report.failure:
        kind = f" ({report.failure_class.value})" if report.failure_class is not None else ""
        return f"The job failed{kind}, and no dataset was published.", report.failure
    title = "The job ended without saying why, and no dataset was published."
    return title, "It was killed, or its node was lost. Shown is what it noted until then."


def moment(text: str) -> str:
    """A time of ISO 8601 in UTC, without fractions of a second; other text is cut."""
    day, _, clock = text.partition("T")
    return f"{day} {clock[:8]} UTC"[:40] if clock.endswith(("+00:00", "Z")) else text[:40]


def quality(report: Report, shown: Figures) -> Shown | None:
    """Is it good: rows, what each step did, failed rows with reasons, and examples of them."""
    if report.rows is None and report.errors is None and not report.failures:
        return None
    good, bad = report.rows or 0, report.errors or 0
    left = max(0, (report.total or 0) - good - bad)
    changes = column_changes(report.columns, report.last_run)
    added, removed = sum(one.last is None for one in changes), sum(one.now is None for one in changes)
    counts = {"added": added, "removed": removed, "of another type": len(changes) - added - removed}
    return {
        "good": good,
        "bad": bad,
        "left": left,
        "bar": bar([(good, "good"), (bad, "bad"), (left, "none")], good + bad + left),
        "rows": _rows(report, shown),
        "failed_by_step": _failed_by_step(report),
        "steps": step_rows(report),
        "meanings": _FAILED_STEPS,  # after the name of one of several questions
        "changes": changes[:_MOST_CHANGES],
        "changes_left": len(changes) - _MOST_CHANGES,
        "changes_by_kind": [f"{count_of(count, 'column')} {kind}" for kind, count in counts.items() if count],
    }


def step_rows(report: Report) -> list[dict[str, str]]:
    """What each step did, by the heads of the table's columns."""
    found = report.steps or []
    names = [name for name in _STEP_COUNTS if name in _ALWAYS or any(getattr(one, name) for one in found)]
    return [
        {"Step": one.name, **{_STEP_COUNTS[name]: words.count(getattr(one, name)) for name in names}}
        for one in found
    ]


def _rows(report: Report, shown: Figures) -> list[Figure]:
    picked: list[Figure] = [shown.rows, shown.errors, shown.error_fraction]
    if report.total is not None:
        picked.append(Figure("Rows of the input", words.count(report.total)))
    if report.counts is not None and report.counts.chunks is not None:
        picked.append(Figure("Chunks made of them", words.count(report.counts.chunks)))
    if report.counts is not None and report.counts.blank:
        picked.append(Figure("Rows with blank text", words.count(report.counts.blank)))
    taken = (shown.resumed, shown.reused, shown.duplicates)
    return picked + [one for one in taken if {one.now, one.last} - {"0", words.UNKNOWN, None}]


def _failed_by_step(report: Report) -> list[Figure]:
    last = report.last_run
    before = last.errors_by_step if last is not None else {}
    now = {group.step: group.rows for group in report.failures}
    has_last = last is not None and bool(before or not last.errors)
    names = {**now, **before} if report.state == "committed" else now
    return [
        figure(step, now.get(step, 0), before.get(step, 0), wanted="less", has_last=has_last)
        for step in names
    ]


def _cost(report: Report, shown: Figures) -> Shown:
    """What did it cost: money, GPU time by type and price, tokens, and what was saved."""
    attempts = Figure("Attempts of this run", words.count(report.attempts))
    per_thousand = () if shown.cost_per_thousand.is_unknown else (shown.cost_per_thousand,)
    known = report.cost is not None and report.gpu_seconds != 0
    prices, held = report.gpu_hour_price, report.gpu_seconds_by_type
    return {
        "money": [shown.cost, *per_thousand, shown.gpu_hours, attempts],
        "tokens": _tokens(report, shown),
        "is_known": known,
        "without_price": [kind or "an unknown type" for kind in held if kind not in prices],
        "gpus": [(kind, seconds, prices.get(kind)) for kind, seconds in held.items()],
        "saved": None if report.savings is None else _saved(report.savings),
    }


def _tokens(report: Report, shown: Figures) -> list[Figure]:
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
    return picked


def _saved(savings: Savings) -> Shown:
    rows = [(text, value) for name, text in _SAVED.items() if (value := getattr(savings, name))]
    return {"tokens": int(sum(value for _, value in rows)), "bars": bars(rows, "d")}


def _answers(report: Report) -> Shown | None:
    """How do the answers look: samples, distribution of answers, lengths, finish reasons."""
    told = [_told(one, report.last_run) for one in report.told]
    told = [one for one in told if one["bars"] or one["reasons"] or one["lengths"]]
    is_left_out = bool(report.rows) and not report.content
    return {"told": told, "is_left_out": is_left_out} if told or is_left_out or report.samples else None


def _told(told: StepAnswers, last: LastRun | None) -> Shown:
    rows = [(one.text, one.rows) for one in (told.answers or ())[:_MOST_ANSWERS]]
    if left := (told.answers or ())[_MOST_ANSWERS:]:
        rows.append((f"{len(left):,} other answers", sum(one.rows for one in left)))
    lengths = {"Length of prompts": told.prompt_tokens, "Length of answers": told.output_tokens}
    return {
        "step": told.step,
        "bars": bars(rows),
        "reasons": _finish_reasons(told, last),
        "lengths": [_lengths(title, bins) for title, bins in lengths.items() if bins],
    }


def _finish_reasons(told: StepAnswers, last: LastRun | None) -> list[Figure]:
    now = told.finish_reasons
    before = last.finish_reasons if last is not None and told.step is None else {}
    names = sorted({**now, **before}, key=lambda name: -now.get(name, 0)) if now else []
    return [
        figure(
            _FINISHED.get(name, name),
            now.get(name, 0),
            before.get(name, 0),
            wanted="less" if name == "length" else "",
            has_last=bool(before),
        )
        for name in names
    ]


def _lengths(title: str, bins: list[Bin]) -> Plot:
    return histogram(title, "rows by tokens", [(one.first, one.last, one.rows) for one in bins])


def _speed(report: Report, shown: Figures) -> Shown | None:
    """How fast was it: the course of the job, its start-up, replicas and GPUs; needs a time."""
    timing = report.timing
    if not (report.state == "committed" or report.course or timing.phases):
        return None
    picked = [shown.seconds, shown.tokens_per_second]
    if timing.rows_per_second:
        picked.append(Figure("Rows a second", words.rate(timing.rows_per_second)))
    if timing.generation_seconds:
        generation = words.seconds(timing.generation_seconds)
        picked.append(Figure("From the first request to the last answer", generation))
        picked.append(Figure("Writing the dataset", words.seconds(timing.commit_seconds)))
    phases = [
        (_PHASES.get(name, name), value)
        for name, value in timing.phases.items()
        if words.known(value) and value > 0
    ]
    return {
        "time": picked,
        "startup": timing.startup_seconds or sum(value for _, value in phases),
        "phases": stacked(phases),
        "course": _course(report),
    }


def _course(report: Report) -> list[Plot]:
    course = report.course
    if not course:
        return []
    tokens = [(one.seconds, one.tokens_per_second) for one in course]
    in_flight = [(one.seconds, one.rows_in_flight) for one in course]
    done = [(one.seconds, one.rows) for one in course]
    replicas = [(one.seconds, one.replicas) for one in course]
    return [
        line_plot("Tokens a second", "prompt and generated", tokens),
        line_plot("Rows in flight", "rows in engines", in_flight, whole=True),
        line_plot("Rows done", "rows", done, whole=True),
        line_plot("Replicas", "with a ready engine", replicas, whole=True),
    ]


def _origin(report: Report) -> Shown:
    """How was it made: what was asked for, the plan with its reasons, columns, versions, places."""
    task, columns = report.task, list(islice(report.columns.items(), _MOST_COLUMNS))
    places = {
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
    return {
        "plan": _plan_rows(report.plan),
        "columns": columns,
        "columns_left": len(report.columns) - len(columns),
        "places": [(name, text) for name, text in places.items() if text],
    }


def _plan_rows(plan: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Name, value and reason of each size; those of the engine have its name before theirs."""
    found: list[tuple[str, Any, str]] = []
    for name, one in plan.items():
        if isinstance(one, Mapping) and "value" in one:
            found.append((f"{prefix}{name}", one["value"], str(one.get("reason") or "")))
        elif isinstance(one, Mapping) and not prefix:
            found += _plan_rows(one, f"{name}: ")
        else:
            found.append((f"{prefix}{name}", one, ""))
    return found
