# SPDX-License-Identifier: Apache-2.0
"""Publish the finished rows as one immutable dataset: first its files, then the entry that names it."""

from __future__ import annotations

import datetime
import io
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.manifest import (
    BatchManifest,
    Column,
    ManifestFile,
    RunStatistics,
    Savings,
)
from airflow_provider_raybatch.contract.run_numbers import Counts, JobRecord, LastRun, Tokens
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.input.table import as_parquet
from airflow_provider_raybatch.job.output.after_commit import renew_copy
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.openai_batch.lines import AnswerLines
from airflow_provider_raybatch.job.output.publish import (
    PublishedRange,
    Target,
    postprocess,
    publish,
    write_rows,
)
from airflow_provider_raybatch.job.output.rows import Range, ranges, rows_per_range
from airflow_provider_raybatch.job.output.schema import Footer, footers, input_types
from airflow_provider_raybatch.job.output.tally import Tally, Wanted
from airflow_provider_raybatch.job.output.unfinished import is_same_task, last_run_of
from airflow_provider_raybatch.job.parts.ledger import tokens_paid
from airflow_provider_raybatch.job.parts.part import Part, good_outputs, tokens_of
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, read_part
from airflow_provider_raybatch.job.steps.counting import Answered, added_up, step_counts, with_earlier
from airflow_provider_raybatch.job.steps.known import StepParts
from airflow_provider_raybatch.job.tasks.base import Task, Totals
from airflow_provider_raybatch.job.tasks.postprocess import Postprocess, column_types
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.job.work import ParallelMap, in_sequence
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder


def prepare(
    spec: BatchInferenceSpec,
    journal: Journal,
    parts: Sequence[Part],
    expected_rows: int,
    statistics: RunStatistics,
    source: pa.Schema,
    own_parts: str,
    parallel_map: ParallelMap[Any] = in_sequence,
    report: Callable[[BatchManifest, Tally], str | None] | None = None,
    records: Sequence[JobRecord] = (),
    answers: Sequence[StepParts] = (),
) -> BatchManifest:
    """Write every row of the input once, and the manifest; readers see none of it before :func:`commit`.

    :param source: input columns as preflight saw them: all that is known if no row was read.
    :param own_parts: see :class:`~airflow_provider_raybatch.job.output.publish.Target`.
    :param report: writes the report of the dataset, and returns where; by default there is none.
    :param records: of the run's jobs, this one's among them.
    :param answers: of each step before the last one, the parts with its answers.
    :raises SupersededError: another submission claimed the destination.
    :raises RaybatchError: a row is missing or double; nothing was published.
    """
    began, folder = time.monotonic(), journal.folder
    journal.check()
    name = f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    parts = sorted(parts, key=lambda part: part.first)
    seen = dict(zip(parts, footers(folder, parts), strict=True))
    task = task_of(spec).measured(good_outputs(folder, parts))
    found = input_types(seen.values(), source, task.column_names)
    inputs = {name: kind for name, kind in found.items() if not task.leaves_out(pa.field(name, kind))}
    target = replace(_target(spec, journal, name, task), inputs=inputs, own_parts=own_parts)
    tally = Tally()
    cut = _ranges(seen, rows_per_range(spec, parts), expected_rows, answers)
    target, done = _publish(target, cut, expected_rows, parallel_map, tally)
    manifest = _manifest(spec, journal, target, seen, done, statistics, began, records, answers)
    if report is not None:
        manifest = manifest.model_copy(update={"report_uri": report(manifest, tally)})
    folder.write(layout.manifest_file(name), manifest.model_dump_json(by_alias=True, indent=1).encode())
    return manifest


def commit(journal: Journal, manifest: BatchManifest) -> None:
    """Publish what :func:`prepare` wrote, by a few small requests.

    :raises SupersededError: another submission claimed the destination; nothing was published.
    """
    journal.commit(manifest.manifest_uri.removeprefix(f"{journal.folder.uri}/"))
    renew_copy(journal.folder, journal)


def _target(spec: BatchInferenceSpec, journal: Journal, name: str, task: Task) -> Target:
    """The place of a commit of this name, without what its rows decide."""
    run, path, lines = journal.submission.run_id, f"{layout.POSTPROCESS}/{name}", None
    if spec.answers_lines:
        lines = AnswerLines(spec, run, int(journal.run_began() or time.time()))
    return Target(
        folder=journal.folder,
        data=f"{layout.DATA}/{name}",
        dead_letter=f"{layout.DEAD_LETTER}/{name}",
        format=spec.destination_format,
        inputs={},
        task=task,
        run=run,
        postprocess=Postprocess(spec.postprocess, path) if spec.postprocess else None,
        errors=f"{layout.ERRORS}/{name}",
        lines=lines,
    )


def _ranges(
    seen: Mapping[Part, Footer], rows_per_range: int, expected_rows: int, answers: Sequence[StepParts]
) -> list[Range]:
    """The rows of each file of the dataset, with the parts of all steps."""
    decoded = {part.path: footer.decoded for part, footer in seen.items()}
    found = ranges(list(seen), rows_per_range, expected_rows, decoded)
    # In most jobs no answer was there before.
    of_steps = [step if step.has_old else replace(step, parts=()) for step in answers]
    return [replace(one, answers=tuple(step.near(one.first, one.stop) for step in of_steps)) for one in found]


def _publish(
    target: Target,
    found: Sequence[Range],
    expected_rows: int,
    parallel_map: ParallelMap[Any],
    tally: Tally,
) -> tuple[Target, list[PublishedRange]]:
    """Write the dataset. The target gets the columns that `postprocess` adds, and `tally` all ranges' own."""
    shown = Wanted.of(target.task.spec.report_samples, len(found))
    target = replace(target, shown=shown)
    if (notes := target.postprocess) is not None:
        types = column_types(parallel_map(postprocess, found, target))
        target = replace(target, postprocess=replace(notes, types=types))
    done: list[PublishedRange] = []
    for one in parallel_map(publish, found, target):
        tally.add(one.tally, shown)
        done.append(replace(one, tally=Tally()))  # frees memory
    if notes is not None:
        target.folder.delete([*(notes.path(range_.number) for range_ in found), notes.notes])
    rows, errors = sum(one.rows for one in done), sum(one.errors for one in done)
    if rows + errors != expected_rows:
        raise RaybatchError(
            f"commit: {count_of(rows + errors, 'row is', 'rows are')} finished, but the input has "
            f"{expected_rows:,}; nothing was published.",
            FailureClass.INTERNAL,
        )
    if not rows:
        empty = [] if target.lines else [target.schema.empty_table()]
        # Readers of the folder need a valid, empty file.
        done.append(PublishedRange(*write_rows(empty, 0, target), 0, 0))
    return target, done


def _manifest(
    spec: BatchInferenceSpec,
    journal: Journal,
    target: Target,
    seen: Mapping[Part, Footer],
    done: Sequence[PublishedRange],
    statistics: RunStatistics,
    began: float,
    records: Sequence[JobRecord],
    answers: Sequence[StepParts],
) -> BatchManifest:
    names, counts = target.task.names, _counts(done, target.task)
    answered = added_up([one.answered for one in done])
    seconds, timing = time.monotonic() - began, statistics.timing
    total = round(timing.total_seconds + seconds, 2)
    timing = timing.model_copy(update={"commit_seconds": round(seconds, 2), "total_seconds": total})
    submission = journal.submission
    return BatchManifest(
        **_places(target, done, bool(counts.error)),
        **_tokens(target, seen, done, answered, statistics.cost, records, answers),
        format=target.format,
        ordered=spec.preserve_order,
        schema=[Column(name=column.name, type=str(column.type)) for column in _as_read(target.schema)],
        counts=counts,
        reasons_by_step=_reasons(done),
        steps=step_counts(spec, answered, counts.input, counts.errors_by_step),
        last_run=_last_run(journal),
        id_column=spec.id_column,
        response_column=None if target.lines else names[target.task.output_type[0].name],
        chunk_column=names[target.task.chunk_index] if target.task.chunk_index else None,
        owner=submission.task,
        run_token=submission.run_token,
        submission_id=submission.submission_id,
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **dict(statistics.model_copy(update={"timing": timing})),
    )


def _places(target: Target, done: Sequence[PublishedRange], has_errors: bool) -> dict[str, Any]:
    """Where the files of a dataset lie, as its manifest says it."""
    uri, name = target.folder.uri, target.data.rpartition("/")[2]
    return {
        "uri": f"{uri}/{target.data}",
        "manifest_uri": f"{uri}/{layout.manifest_file(name)}",
        "dead_letter_uri": f"{uri}/{target.dead_letter}" if has_errors else None,
        "errors_uri": f"{uri}/{target.errors}" if has_errors and target.lines else None,
        "files": [
            ManifestFile(path=one.path[len(target.data) + 1 :], rows=one.dataset_rows, bytes=one.bytes)
            for one in done
            if one.path is not None
        ],
    }


def _tokens(
    target: Target,
    seen: Mapping[Part, Footer],
    done: Sequence[PublishedRange],
    answered: Sequence[Answered],
    cost: float | None,
    records: Sequence[JobRecord],
    answers: Sequence[StepParts],
) -> dict[str, Any]:
    """Tokens of a dataset: delivered, paid for and saved, as its manifest says it."""
    last = [_Paid(part.submission_id, footer.paid, footer.filled) for part, footer in seen.items()]
    own = [one for part, one in zip(seen, last, strict=True) if part.is_of(target.run)]
    own += (of_earlier := _paid_in(target.folder, answers))
    totals = with_earlier(sum((one.totals for one in done), Totals()), answered)
    earlier = sum(answered[:-1], Answered())
    paid = tokens_paid(((one.submission_id, one.tokens) for one in own), records)
    return {
        "tokens": Tokens(
            input=totals.input_tokens,
            cached=totals.cached_tokens,
            output=totals.output_tokens,
            filled=sum(one.filled for one in [*last, *of_earlier]),
            reasoning=totals.reasoning_tokens,
        ),
        "tokens_paid": paid,
        "tokens_lost": paid - sum(one.tokens for one in own),
        "tokens_saved": sum(sum(one.saved.values()) for one in done) + earlier.saved_tokens,
        "savings": _savings(done, earlier, sum(one.filled for one in own), cost, paid),
        "tokens_generated": sum(one.generated for one in done) + earlier.generated_tokens,
        "finish_reasons": dict(totals.finish_reasons),
    }


def _counts(done: Sequence[PublishedRange], task: Task) -> Counts:
    ok, error = sum(one.rows for one in done), sum(one.errors for one in done)
    origins = sum((Counter(one.origins) for one in done), Counter[str]())
    return Counts(
        input=ok + error,
        ok=ok,
        error=error,
        resumed=origins["carried"],
        reused=origins["stored"],
        duplicates=origins["duplicate"],
        blank=sum(one.blank for one in done),
        chunks=sum(one.dataset_rows for one in done) if task.chunk_index else None,
        errors_by_step=dict(sum((Counter(one.failed_steps) for one in done), Counter())),
    )


class _Paid(NamedTuple):
    """Tokens of a part that its submission paid for, and that were filled in instead of generated."""

    submission_id: str
    tokens: int
    filled: int


def _paid_in(folder: Folder, answers: Sequence[StepParts]) -> list[_Paid]:
    """Of the parts of all steps before the last one.

    A damaged part has none, as the dataset has no row from it.
    """

    def of_part(part: Part) -> _Paid:
        with suppress(DamagedPartError):
            filled, paid = read_part(folder, part.path, part.bytes, lambda file: tokens_of(file.metadata))
            return _Paid(part.submission_id, paid, filled)
        return _Paid(part.submission_id, 0, 0)

    of_run = [part for step in answers for part in step.parts if part.is_of(step.run)]
    return list(in_order(of_part, of_run))


def _savings(
    done: Sequence[PublishedRange], earlier: Answered, filled: int, cost: float | None, paid: int
) -> Savings:
    """What the run would have paid for besides, at its own cost a token.

    :param earlier: the answers to all steps before the last one.
    :param filled: tokens that were not generated, since choices forced them.
    :param paid: tokens that the run paid for, and `cost` what its GPUs cost.
    """
    saved = sum((Counter(one.saved) for one in done), Counter[str]())
    # A retry that knew nothing would pay again for what earlier attempts have asked.
    resumed = sum(one.carried for one in done) + saved["generated"] + earlier.resumed_tokens
    reused = saved["stored"] + earlier.reused_tokens
    duplicates = saved["duplicate"] + earlier.duplicate_tokens
    tokens = resumed + reused + duplicates + filled
    return Savings(
        resumed=resumed,
        reused=reused,
        duplicates=duplicates,
        filled=filled,
        cost=round(tokens * cost / paid, 6) if cost is not None and paid else None,
    )


def _reasons(done: Sequence[PublishedRange]) -> dict[str, str]:
    """The most frequent reason of each step, by the range that has it most often."""
    largest: dict[str, tuple[int, str]] = {}
    for one in done:
        for step, found in one.reasons.items():
            largest[step] = max(largest.get(step, found), found, key=lambda each: each[0])
    return {step: reason for step, (_, reason) in largest.items()}


def _last_run(journal: Journal) -> LastRun | None:
    """The last dataset of the same task, whatever its DAG run, where the destination has one."""
    with suppress(RaybatchError):  # figures of another job, without which this one is as good
        task = journal.submission.task
        earlier = journal.replaced()
        if earlier is not None and is_same_task(earlier.owner, task):
            return earlier.as_last_run()
        return None if earlier is None else last_run_of(journal.folder, journal.history(), task)
    return None


def _as_read(schema: pa.Schema) -> pa.Schema:
    """The schema that readers of Parquet see: with fewer types, and other names inside of lists."""
    return pq.read_schema(io.BytesIO(as_parquet(schema.empty_table())))
