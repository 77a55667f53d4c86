# SPDX-License-Identifier: Apache-2.0
"""``raybatch preview``: some rows as a job would ask them, the engine's answers, and the job that looks."""

from __future__ import annotations

import secrets as random_tokens
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.text import Text

from airflow_provider_raybatch.cli.task_of import BatchTask, batch_task
from airflow_provider_raybatch.cli.terminal import (
    console,
    json_line,
    masked,
    quietly,
    show_findings,
    show_indented,
    steady,
)
from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.events import Event, Previewed, RowAnswered, RowPreviewed
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.preview import (
    MOST_ASKED,
    Preview,
    PreviewRequest,
    PreviewRow,
    RowAnswer,
    ShownMessage,
)
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.contract.submission import Submission, TaskKey
from airflow_provider_raybatch.contract.text import clean, count_of
from airflow_provider_raybatch.hooks.connection import RayConnection

_KEY_DIGITS = 16


def show_preview(options: Namespace) -> None:
    """Look at rows, and write them."""
    given = {"rows": options.rows, "seed": options.seed}
    ask = min(options.rows, MOST_ASKED) if options.ask is None else options.ask
    wanted = parse(PreviewRequest, {"verb": "preview", **given, "ask": ask})
    if wanted.ask:
        print(f"ask: answers may take {options.timeout:g} s, then it gives up (--timeout)", file=sys.stderr)
    task, events = run_preview_job(options, wanted)
    rows = [event.row for event in events if isinstance(event, RowPreviewed)]
    answers: dict[int, list[RowAnswer]] = {}
    for event in events:
        if isinstance(event, RowAnswered):
            answers.setdefault(event.answer.ordinal, []).append(event.answer)
    end = next(event.preview for event in events if isinstance(event, Previewed))
    notes = task.notes
    if options.ask is None and end.rows_shown > MOST_ASKED:
        notes = (*notes, f"ask: the first {MOST_ASKED} of these rows were asked, the most that it asks")
    if options.json:
        document = {"task": task.title, "notes": notes, **end.model_dump(mode="json")}
        document["shown"] = [_with_answers(row, answers.get(row.ordinal, ())) for row in rows]
        print(json_line(document))
        return
    to = console()
    steps = [step.name for step in task.spec.steps or ()] or [""]
    to.print(Text(_title(task.title, end, options.seed), style="bold"))
    asked = wanted.ask if answers else 0
    for place, row in enumerate(rows):
        _show(to, row)
        if row.is_skipped and not task.spec.steps:
            to.print(Text("  not asked (on_blank)", style="cyan"))
        elif row.failure is None and (place < asked or row.is_skipped):
            _show_answers(to, steps if place < asked else steps[:1], answers.get(row.ordinal, ()))
    show_findings(to, end, notes)


def _with_answers(row: PreviewRow, answers: Sequence[RowAnswer]) -> dict[str, object]:
    shown = row.model_dump(mode="json")
    if any(answer.step for answer in answers):
        shown["answers"] = [answer.model_dump(mode="json", exclude={"ordinal"}) for answer in answers]
    elif answers:
        shown["answer"] = answers[0].model_dump(mode="json", exclude={"ordinal", "step", "messages"})
    return shown


def _title(title: str, end: Preview, seed: int | None) -> str:
    if end.rows is None:
        return steady(f"{title}: no row could be read")
    how = "the first" if seed is None else f"a random sample (seed {seed}) of"
    return steady(f"{title}: {how} {end.rows_shown:,} of {count_of(end.rows, 'row')}")


def _show(to: Console, row: PreviewRow) -> None:
    to.print()
    to.print(Text(" | ".join(_facts(row)), style="bold red" if row.failure else "bold cyan"))
    _show_messages(to, row.messages)


def _show_messages(to: Console, messages: Sequence[ShownMessage]) -> None:
    for message in messages:
        _show_text(to, f"{message.role}: " if message.role else "", message.text, "green")


def _show_answers(to: Console, steps: Sequence[str], answers: Sequence[RowAnswer]) -> None:
    by_step = {answer.step: answer for answer in answers}
    for step in steps:
        if step in by_step:
            _show_answer(to, by_step[step])
            if by_step[step].failure is not None:
                return  # later steps are not asked
        elif step:
            to.print(Text(f"  step {steady(step)} does not ask this row (when, on_blank)", style="cyan"))


def _show_answer(to: Console, answer: RowAnswer) -> None:
    if answer.step:
        to.print(Text(f"  step {steady(answer.step)}", style="cyan"))
    _show_messages(to, answer.messages)
    for one in answer.completions:
        how = f"answer ({one.finish_reason}, {count_of(one.output_tokens, 'token')}): "
        _show_text(to, how, one.text, "bold green")
    if answer.columns:
        _show_text(to, "columns: ", answer.columns, "bold green")
    if answer.failure is not None:
        _show_text(to, "would be a dead letter: ", answer.failure, "bold red")


def _show_text(to: Console, name: str, text: str, style: str) -> None:
    show_indented(to, Text.assemble((steady(name), style), steady(text)), "  ", "  ")


def _facts(row: PreviewRow) -> Sequence[str]:
    facts = [f"row {row.ordinal:,}"]
    facts += [f"id {steady(row.row_id)}"] if row.row_id is not None else []
    if row.tokens is not None:
        cut = f", {row.cut_tokens:,} cut off" if row.cut_tokens else ""
        facts.append(f"{count_of(row.tokens, 'token')}{cut}")
    facts += [f"key {row.key[:_KEY_DIGITS]}"] if row.key else []
    facts += [f"answered by an {row.answered}".replace("an response", "the response")] if row.answered else []
    facts += [f"asks what row {row.same_as:,} asks"] if row.same_as is not None else []
    facts += [f"sampling {steady(row.sampling)}"] if row.sampling else []
    facts += [f"FAILS in step {steady(row.failure)}"] if row.failure else []
    return facts


def run_preview_job(options: Namespace, wanted: PreviewRequest) -> tuple[BatchTask, list[Event]]:
    """Run a preview job over the connection of the task; return its rows and its last event, without secrets.

    What it waits for is written to stderr meanwhile.

    :raises RaybatchError: the options can't be used, the cluster can't be reached, or the job failed.
    """
    if not options.timeout > 0:
        raise SpecError(f"timeout: it must be more than 0 seconds, but it is {options.timeout:g}.")
    task = _with_note(batch_task(options), wanted)
    if wanted.ask and task.spec.engine == "ray_data_llm":
        raise SpecError(
            "ask: engine 'ray_data_llm' is a pipeline of Ray's, which a preview can't ask; leave --ask out, "
            "or run the task with limit=20."
        )
    return task, [masked(event) for event in quietly(lambda: _looked(task, wanted, options.timeout))]


def _with_note(task: BatchTask, wanted: PreviewRequest) -> BatchTask:
    """The task; of one with steps the note says what is shown, since later steps ask about answers."""
    steps = task.spec.steps or []
    if len(steps) < 2:
        return task
    first, others = f"step {steps[0].name!r}, the first of {len(steps)}", "later ones read its answers"
    note = f"steps: prompts and tokens are those of {first}; {others}, and are shown with "
    note += "them" if wanted.ask else "--ask"
    if wanted.verb == "plan":
        note = "steps: an answer that a prompt reads counts as one token, and what `each` asks about once"
    return replace(task, notes=(*task.notes, f"{note}."))


def _looked(task: BatchTask, wanted: PreviewRequest, timeout: float) -> list[Event]:
    from airflow_provider_raybatch.cluster.follow.preview import run_preview
    from airflow_provider_raybatch.cluster.jobs_api.blocking import run_blocking
    from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
    from airflow_provider_raybatch.cluster.submit.request import build_preview_request
    from airflow_provider_raybatch.hooks.credentials import job_secrets
    from airflow_provider_raybatch.hooks.lookup import known_installation_id
    from airflow_provider_raybatch.hooks.ray import RayHook

    connection = RayHook(task.ray_conn_id).read()
    secrets = job_secrets(task.aws_conn_id, task.hf_conn_id)
    travels = secrets.for_no_environment() if secrets and connection.embedded else secrets
    name, key = f"raybatch-{wanted.verb}-{random_tokens.token_hex(4)}", random_tokens.token_hex(32)
    dag_id, task_id = task.names
    # In the namespace of the task's own jobs, whose warm engines it may take.
    namespace = connection.namespace or known_installation_id() or "default"
    anyone = TaskKey(namespace=namespace, dag_id=dag_id, run_id="", task_id=task_id)
    submission = Submission(task=anyone, run_token=name, submission_id=name)
    spec = task.spec.model_copy(update={"submission": submission})

    async def ask(address: ClusterAddress) -> list[Event]:
        async with RayJobsClient(address) as client:
            given: dict[str, Any] = {"seal_key": connection.secret_seal_key, "runtime_env": task.runtime_env}
            request = await build_preview_request(client, spec, wanted, key=key, secrets=travels, **given)
            return await run_preview(client, request, key, timeout, _say)

    with _place(connection, secrets) as address:
        return run_blocking(ask(address))


def _place(connection: RayConnection, secrets: Secrets | None) -> AbstractContextManager[ClusterAddress]:
    """The cluster that looks: a private one, if the connection says so."""
    if not connection.embedded:
        return nullcontext(connection.address())
    from airflow_provider_raybatch.cluster.local.head import embedded_cluster
    from airflow_provider_raybatch.hooks.credentials import as_environment

    return embedded_cluster(log=_say, env=as_environment(secrets))


def _say(line: str) -> None:
    print(masked(clean(line)), file=sys.stderr, flush=True)
