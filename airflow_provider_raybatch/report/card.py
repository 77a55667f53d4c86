# SPDX-License-Identifier: Apache-2.0
"""A dataset card in Markdown, as hubs read it: YAML for their search, then text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_raybatch.contract.layout import DATA
from airflow_provider_raybatch.contract.report import Report, Sample
from airflow_provider_raybatch.contract.run_numbers import StepCounts
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words
from airflow_provider_raybatch.report.words import fenced, fit, line, markdown_table

_TASK_CATEGORIES = {
    "generate": "text-generation",
    "embed": "feature-extraction",
    "classify": "text-classification",
    "score": "text-ranking",
}
"""Hugging Face's categories by `model_task`."""
_SUFFIXES = {"parquet": "parquet", "jsonl": "jsonl"}
"""Formats that hubs load by themselves."""
_UNITS = ((10**3, "K"), (10**6, "M"), (10**9, "B"), (10**12, "T"))
_LONGEST_TEXT = 2000
_MOST_SAMPLES = 5
_MOST_COLUMNS = 200
_ARGUMENTS = ("model", "engine", "adapter", "model_task", "sampling")
"""Named in a list; prompts have blocks of their own."""
_PROMPTS = ("system_prompt", "prompt", "query", "document")


def dataset_card(report: Report) -> str:
    """The card as Markdown, to be saved as ``README.md`` in the dataset's destination or repository.

    :param report: of a committed job; samples are left out where it has no content.
    """
    return "\n".join([*_front_matter(report), "", *_body(report)]) + "\n"


def size_category(rows: int) -> str:
    """Hugging Face's category of a dataset with so many rows."""
    if rows < 1000:
        return "n<1K"
    below = 1000
    while below * 10 <= rows and below < 10**12:
        below *= 10
    return "n>1T" if below >= 10**12 else f"{_short(below)}<n<{_short(below * 10)}"


def _short(number: int) -> str:
    size, unit = next((size, unit) for size, unit in reversed(_UNITS) if number >= size)
    return f"{number // size}{unit}"


def _front_matter(report: Report) -> Iterator[str]:
    """YAML whose values are JSON, so that no text can end its line."""
    task = str(report.arguments.get("model_task") or "generate")
    found: dict[str, Any] = {"pretty_name": f"{report.task.task_id} of {report.task.dag_id}"}
    if report.rows is not None:
        found["size_categories"] = [size_category(_dataset_rows(report) or 0)]
    if task in _TASK_CATEGORIES:
        found["task_categories"] = [_TASK_CATEGORIES[task]]
    found["tags"] = ["synthetic", "airflow", "ray", *([engine] if (engine := _engine(report)) else [])]
    suffix = _SUFFIXES.get(report.format or "")
    if suffix is not None and report.uri is not None:
        files = {"split": "train", "path": f"{DATA}/{report.uri.rstrip('/').rpartition('/')[2]}/*.{suffix}"}
        found["configs"] = [{"config_name": "default", "data_files": [files]}]
    yield "---"
    for name, value in found.items():
        yield f"{name}: {fit(json.dumps(value, ensure_ascii=False))}"
    yield "---"


def _engine(report: Report) -> str | None:
    engine = report.arguments.get("engine")
    return engine if isinstance(engine, str) and engine.isidentifier() else None


def _dataset_rows(report: Report) -> int | None:
    return report.rows if report.counts is None else report.counts.dataset_rows


def _body(report: Report) -> Iterator[str]:
    task = report.task
    yield f"# {line(task.task_id)}"
    yield ""
    if report.state != "committed":
        yield "**The job did not publish a dataset.** This card says what is known of it."
        yield ""
    made = f"Made by the task {line(task.task_id)} of the DAG {line(task.dag_id)}"
    yield f"{made} in its run {line(task.run_id)}, {line(report.created_at)}, by batch inference on Ray."
    yield ""
    yield "This card was written from the job's report. Add the licence of the source and of the model."
    yield from _how(report)
    yield from _contents(report)
    yield from _cost(report)
    yield from _failures(report)
    yield from _samples(report)


def _how(report: Report) -> Iterator[str]:
    arguments = report.arguments
    named = {name: arguments[name] for name in _ARGUMENTS if arguments.get(name)}
    if report.effective_sampling:
        named["sampling"] = report.effective_sampling
    yield from ("", "## How it was made", "")
    for name, value in named.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        yield f"- {line(name)}: {line(text)}"
    for name, version in report.versions.items():
        yield f"- {line(name)} {line(version)}"
    for name, text in _prompts(arguments):
        yield from ("", f"{line(name)}:", "", fenced(text, _LONGEST_TEXT))


def _prompts(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was asked, by the argument's name; in steps, after the step's name."""
    for name in _PROMPTS:
        if isinstance(arguments.get(name), str):
            yield name, arguments[name]
    steps = arguments.get("steps")
    for step in steps if isinstance(steps, list) else ():
        for name in _PROMPTS:
            if isinstance(step, Mapping) and isinstance(step.get(name), str):
                yield f"{step.get('name')}: {name}", step[name]


def _asked(one: StepCounts) -> str:
    return words.count(one.asked) + (f" ({words.count(one.rejected)} rejected)" if one.rejected else "")


def _contents(report: Report) -> Iterator[str]:
    counts = report.counts
    rows: list[tuple[str, Any]] = [
        ("rows of the dataset", words.count(_dataset_rows(report))),
        ("rows of the input", words.count(report.total)),
        ("rows that failed and are left out", words.count(report.errors)),
    ]
    rows += [(f"rows asked in step {one.name}", _asked(one)) for one in report.steps or ()]
    if counts is not None:
        taken = counts.resumed + counts.reused + counts.duplicates
        rows.append(("rows with an answer from earlier runs or equal rows", words.count(taken)))
    rows += [
        (f"answers with finish reason {name}", words.count(n)) for name, n in report.finish_reasons.items()
    ]
    yield from ("", "## Contents", "", markdown_table(("What", "Number"), rows).rstrip())
    if report.columns:
        shown = list(report.columns.items())[:_MOST_COLUMNS]
        yield from ("", "### Columns", "", markdown_table(("Column", "Type"), shown).rstrip())
        if left := len(report.columns) - len(shown):
            yield from ("", f"And {count_of(left, 'more column')}.")


def _cost(report: Report) -> Iterator[str]:
    rows: Mapping[str, str] = {
        "cost": words.money(report.cost, report.currency),
        "GPU time": words.hours(report.gpu_seconds),
        "tokens paid": words.count(report.tokens_paid),
        "tokens of prompts": words.count(report.tokens.input),
        "generated tokens": words.count(report.tokens.output),
        "time of the job": words.seconds(report.seconds),
    }
    yield from ("", "## Cost", "", markdown_table(("What", "Amount"), list(rows.items())).rstrip())


def _failures(report: Report) -> Iterator[str]:
    yield from ("", "## Known failures", "")
    cut = report.finish_reasons.get("length", 0)
    if cut:
        yield f"- {count_of(cut, 'answer')} cut off at the limit of tokens"
    for group in report.failures:
        reason = f", mostly: {line(group.reason)}" if group.reason else ""
        yield f"- {count_of(group.rows, 'row')} failed at {line(group.step)}{reason}"
    if not cut and not report.failures:
        yield "No row failed, and no answer was cut off." if report.errors == 0 else "Not known."


def _samples(report: Report) -> Iterator[str]:
    if not report.samples:
        return
    yield from ("", "## Samples")
    for one in report.samples[:_MOST_SAMPLES]:
        yield from _sample(one)


def _sample(one: Sample) -> Iterator[str]:
    yield from ("", f"### Row {one.ordinal:,}")
    for answer in one.answers:
        of = "" if answer.step is None else f" of {line(answer.step)}"
        for title, text in (("Prompt", answer.request), ("Answer", answer.response)):
            if text is not None:
                yield from ("", f"{title}{of}:", "", fenced(text, _LONGEST_TEXT))
