# SPDX-License-Identifier: Apache-2.0
"""``raybatch plan``: each size of a job with its reason, and how long its prompts are."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from airflow_provider_raybatch.cli.places import dataset_at
from airflow_provider_raybatch.cli.preview import run_preview_job
from airflow_provider_raybatch.cli.report import find_report
from airflow_provider_raybatch.cli.task_of import BatchTask
from airflow_provider_raybatch.cli.terminal import console, json_line, show_findings, show_table, steady
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.events import Planned
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.preview import PlanReport, PreviewRequest, PromptTokens
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.report import words

_OF_RATES = (
    "model", "engine", "engine_args", "accelerator_type", "num_gpus", "sampling", "steps",
)  # fmt: skip


def show_plan(options: Namespace) -> None:
    """Look at sizes, and write them."""
    wanted = parse(PreviewRequest, {"verb": "plan", "seed": options.seed, "all_rows": options.all_rows})
    task, events = run_preview_job(options, wanted)
    report = next(event.report for event in events if isinstance(event, Planned))
    last = _as_last_run(task, report)
    if options.json:
        document = {"task": task.title, "notes": task.notes, **report.model_dump(mode="json")}
        document["as_last_run"] = last
        print(json_line(document))
        return
    to = console()
    to.print(Text(steady(f"{task.title}: {_source(report)}"), style="bold"))
    if last is not None:
        to.print(Text(steady(f"{count_of(report.remaining or 0, 'row')} left, {_valued(last)}")))
    if report.prompt_tokens is not None:
        _show_tokens(to, report.prompt_tokens)
    for step, tokens in report.later_steps.items():
        _show_tokens(to, tokens, f" of step {step}")
    if report.sizes:
        show_table(to, "Sizes", ("size", "value", "reason"), _sizes(report), numbers=(1,))
    show_findings(to, report, task.notes)


def _valued(last: Mapping[str, Any]) -> str:
    if last["changed"]:
        changed = " and ".join(last["changed"])
        return f"not valued: the last run, {last['run']}, had another {changed}, so its rates do not apply"
    cost = "" if last["cost"] is None else f" and {words.money(last['cost'], last['currency'])}"
    return f"at the rates of the last run, {last['run']}: {words.seconds(last['seconds'])}{cost}"


def _as_last_run(task: BatchTask, report: PlanReport) -> dict[str, Any] | None:
    """Time and money at the rates of the task's last dataset, at its destination or beside it.

    Both are ``None`` where arguments on which the rates depend have changed since.
    """
    dag_id, task_id = task.names
    for place in filter(None, (task.spec.destination, task.spec.destination.rpartition("/")[0])):
        with suppress(RaybatchError):
            manifest = dataset_at(place, task.aws_conn_id).manifest
            if task_id and (manifest.owner.dag_id, manifest.owner.task_id) != (dag_id, task_id):
                continue
            counts, timing = manifest.counts, manifest.timing
            tokens = (manifest.tokens_paid + manifest.tokens_saved) or 1
            asked = counts.input * manifest.tokens_paid / tokens  # `resumed` has those of earlier attempts
            if not timing.rows_per_second or not asked or report.remaining is None:
                return None
            found = {"run": manifest.owner.run_id, "currency": manifest.currency}
            if changed := _changed(task, manifest.manifest_uri):
                return {**found, "changed": changed, "seconds": None, "cost": None}
            cost = None if manifest.cost is None else round(manifest.cost / asked * report.remaining, 6)
            seconds = timing.startup_seconds + report.remaining / timing.rows_per_second
            return {**found, "changed": [], "seconds": round(seconds, 1), "cost": cost}
    return None


def _changed(task: BatchTask, manifest_uri: str) -> list[str]:
    """Arguments on which rates depend that the last run had otherwise; none where they can't be read."""
    from airflow_provider_raybatch.job.output.report import explaining

    now, last = explaining(task.spec), dict[str, Any]()
    with suppress(RaybatchError):
        last = find_report(manifest_uri, task.aws_conn_id).arguments
    return [one for one in _OF_RATES if last and last.get(one) != now.get(one)]


def _source(report: PlanReport) -> str:
    if report.rows is None:
        return "the source could not be read"
    left = "" if report.remaining == report.rows else f", {report.remaining:,} left to ask"
    return (
        f"{count_of(report.rows, 'row')}{left} in {count_of(report.files, 'file')} of {decimal(report.bytes)}"
    )


def _sizes(report: PlanReport) -> list[tuple[str, str, str]]:
    return [(size.name, size.value, size.reason) for size in report.sizes]


def _show_tokens(to: Console, tokens: PromptTokens, step: str = "") -> None:
    which = "a random sample of" if tokens.is_sample else "all"
    response = "the room that is left" if tokens.max_tokens is None else count_of(tokens.max_tokens, "token")
    failed = f"; {tokens.failed:,} of them fail" if tokens.failed else ""
    figures = (
        ("P50", tokens.p50), ("P95", tokens.p95), ("P99", tokens.p99), ("longest", tokens.longest),
        ("total", tokens.total), ("context", tokens.context),
    )  # fmt: skip
    show_table(
        to,
        f"Tokens of prompts{step}, over {which} {count_of(tokens.rows, 'row')}{failed}",
        [name for name, _ in figures],
        [[f"{value:,}" for _, value in figures]],
        numbers=range(len(figures)),
    )
    if tokens.cut_offs:
        cuts = [(one.max_model_len, one.failed, one.shortened) for one in tokens.cut_offs]
        show_table(
            to,
            "What a smaller max_model_len would cut off, and it would free no memory; a response has at "
            f"most {response}",
            ("max_model_len", "rows without room", "responses without all their room"),
            [[f"{value:,}" for value in cut] for cut in cuts],
            numbers=(0, 1, 2),
        )
