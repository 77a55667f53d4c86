# SPDX-License-Identifier: Apache-2.0
"""The report of a run that published nothing, from what its jobs left: records, parts, and the journal.

It needs neither Ray nor the job's spec, since a killed driver writes nothing: whoever looks next makes it.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.limits import CostArguments
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.layout import DEAD_LETTER, JOURNAL, task_place
from airflow_provider_raybatch.contract.manifest import JournalEntry, Timing, parse_entry, parse_manifest
from airflow_provider_raybatch.contract.report import FailedExample, FailureGroup, Report, Sample
from airflow_provider_raybatch.contract.run_numbers import JobRecord, LastRun, ReplicaStats, Tokens
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.job.failures.public_reasons import main_reasons
from airflow_provider_raybatch.job.monitor.money import Money, spent_before
from airflow_provider_raybatch.job.output.record import INTERVAL, listed_records
from airflow_provider_raybatch.job.output.report import explaining
from airflow_provider_raybatch.job.output.tally import examples_of, lowest, samples_of, telling
from airflow_provider_raybatch.job.parts.ledger import RowMask, add_up, tokens_paid
from airflow_provider_raybatch.job.parts.part import (
    FAILED_COLUMNS,
    Part,
    listed,
    paid_tokens,
    read_columns,
    with_failures,
)
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder

_MOST_OPENED = 64
"""Parts with failed rows that are opened to count these; of more, good and failed rows are in their names."""
_LARGEST = 64 * 1024 * 1024
"""Bytes of all of them that are read for reasons and examples."""
_LARGEST_SAMPLED = 16 * 1024 * 1024
"""Bytes of a part that good rows are taken from."""
_MOST_FOOTERS = 2000
"""Parts whose footers are read for the tokens that were paid for."""
_MOST_ENTRIES = 200
"""Of the journal: a task's last dataset is among the newest ones, or too old to compare with."""
ALIVE = 3 * INTERVAL
"""Seconds since its last note for which a job without an end may still be running."""


@dataclass(frozen=True)
class Known:
    """What only a driver knows.

    :param spec: of its job.
    :param replicas: what each one did.
    """

    spec: BatchInferenceSpec
    plan: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    replicas: Sequence[ReplicaStats] = ()


def report_of_run(
    folder: Folder,
    task: TaskKey,
    *,
    part_folder: str | None = None,
    own: JobRecord | None = None,
    known: Known | None = None,
) -> Report | None:
    """The report of the newest run of a task, if it has no dataset and its last job is over.

    Cheap for many rows: parts are listed, and a few are read.

    :param folder: the destination.
    :param part_folder: of the driver that asks, if one does. What lies there is left out, unless it gives
        its `own` record, since it ends now.
    :param known: what that driver knows besides.
    :returns: ``None`` where the task has no job here, its run has committed, or its last job may still run.
    :raises StorageError: the destination can't be listed.
    """
    files = folder.list(task_place(task))
    found = [pair for pair in listed_records(folder, files) if _above(pair[0]) != part_folder]
    records = [record for _, record in found] + ([] if own is None else [own])
    if not records:
        return None
    last, by_driver = records[-1], own is not None or part_folder is not None
    if not by_driver and last.failure is None and time.time() - last.at < ALIVE:
        return None
    entries = _journal(folder)
    if _has_committed(entries, task, last):
        return None
    run = [record for record in records if record.run_token == last.run_token]
    drivers = [_above(path) for path, record in found if record.run_token == last.run_token]
    drivers += [part_folder] if own is not None and part_folder is not None else []
    in_run = tuple({f"{_above(driver)}/" for driver in drivers})
    parts = [part for part in listed(files) if part.path.startswith(in_run)]
    shows = last.content and (known is None or known.spec.shows_rows)
    report = _report(task, last, run, parts, folder, known, shows)
    last_run = last_run_of(folder, entries, task) or (known and known.spec.last_run)
    report = report.model_copy(update={"last_run": last_run})
    return report if shows else report.without_content()


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _journal(folder: Folder) -> list[JournalEntry]:
    """The entries that can be read, oldest first."""

    def read(path: str) -> JournalEntry | None:
        with suppress(RaybatchError):
            return parse_entry(folder.read(path), path)
        return None

    paths = sorted(entry.path for entry in folder.list(JOURNAL) if entry.path.endswith(".json"))
    return [entry for entry in in_order(read, paths[-_MOST_ENTRIES:]) if entry is not None]


def _has_committed(entries: Sequence[JournalEntry], task: TaskKey, record: JobRecord) -> bool:
    """Whether the run has committed since the job of `record` began."""
    began = record.began - 1  # entries are to the second
    return any(
        entry.kind == "commit"
        and (entry.owner, entry.run_token) == (task, record.run_token)
        and datetime.datetime.fromisoformat(entry.at).timestamp() >= began
        for entry in entries
    )


def last_run_of(folder: Folder, entries: Sequence[JournalEntry], task: TaskKey) -> LastRun | None:
    """The newest dataset of the same task, of any DAG run, in a destination.

    :param entries: of its journal, oldest first.
    """
    for entry in reversed(entries):
        if entry.kind == "commit" and entry.published is not None and is_same_task(entry.owner, task):
            with suppress(RaybatchError):
                content = folder.read(entry.published.manifest)
                return parse_manifest(content, f"{folder.uri}/{entry.published.manifest}").as_last_run()
            return None
    return None


def is_same_task(owner: TaskKey, task: TaskKey) -> bool:
    """Whether both are the same task of the same DAG, whatever its run."""
    return owner.model_copy(update={"run_id": task.run_id}) == task


def _report(
    task: TaskKey,
    last: JobRecord,
    run: Sequence[JobRecord],
    parts: Sequence[Part],
    folder: Folder,
    known: Known | None,
    shows_rows: bool,
) -> Report:
    rows, errors, still = _counted(folder, parts, last.total)
    tokens = Tokens(input=sum(one.input_tokens for one in run), output=sum(one.output_tokens for one in run))
    prices = {"gpu_hour_price": last.gpu_hour_price or None, "currency": last.currency or "USD"}
    money = Money(CostArguments.model_validate(prices), spent_before(run, last.run_token))
    seconds = round(max(0.0, last.at - last.began), 1)
    return Report(
        rows=rows,
        errors=errors,
        total=last.total,
        tokens=tokens,
        tokens_paid=tokens_paid(_written(folder, parts, last), run),
        seconds=seconds,
        cost=money.cost,
        currency=last.currency,
        gpu_seconds=round(sum(money.gpu_seconds_by_type.values()), 1),
        gpu_seconds_by_type=money.gpu_seconds_by_type,
        gpu_hour_price=money.used_prices,
        state="ended" if last.failure is None else "failed",
        failure=last.failure,
        failure_class=last.failure_class,
        attempts=len(run),
        failures=_failures(folder, parts, still, shows_rows),
        timing=Timing(phases=last.phases, total_seconds=seconds),
        course=last.course,
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        task=task,
        submission_id=last.submission_id,
        dead_letter_uri=_letters(folder, parts, last),
        **({} if known is None else _of_driver(known, folder, parts)),
    )


def _of_driver(known: Known, folder: Folder, parts: Sequence[Part]) -> dict[str, Any]:
    """Fields of the report that only a driver knows."""
    return {
        "replicas": list(known.replicas),
        "samples": _samples(folder, parts, known.spec),
        "arguments": explaining(known.spec),
        "plan": dict(known.plan),
        "versions": dict(known.versions),
    }


def _written(folder: Folder, parts: Sequence[Part], last: JobRecord) -> list[tuple[str, int]]:
    """Tokens that the run paid for by the footers of its parts, each with its submission's id."""
    own = [part for part in parts if part.is_of(last.submission_id.rpartition("-")[0])]
    with suppress(RaybatchError):
        return list(
            in_order(lambda part: (part.submission_id, paid_tokens(folder, part)), own[:_MOST_FOOTERS])
        )
    return []


def _letters(folder: Folder, parts: Sequence[Part], last: JobRecord) -> str | None:
    """Where the last job has put its failed rows, if it could."""
    for driver in {part.driver for part in parts if part.submission_id == last.submission_id}:
        if folder.holds(f"{DEAD_LETTER}/{driver}"):
            return f"{folder.uri}/{DEAD_LETTER}/{driver}"
    return None


def _counted(folder: Folder, parts: Sequence[Part], total: int | None) -> tuple[int, int, RowMask | None]:
    """Good rows and failed ones; and which failed, where that is known."""
    ragged = sum(not part.is_solid for part in parts)
    if total is not None and ragged <= _MOST_OPENED:
        with suppress(RaybatchError):
            ledger = add_up(folder, parts, total)
            failed = ledger.failures > 0
            return ledger.rows, int(np.count_nonzero(failed)), failed
    good, errors = sum(part.ok for part in parts), sum(part.rows - part.ok for part in parts)
    if total is not None:
        good = min(good, total)
        errors = min(errors, total - good)
    return good, errors, None


def _failures(
    folder: Folder, parts: Sequence[Part], still: RowMask | None, shows_rows: bool
) -> list[FailureGroup]:
    """Failed rows by step, as far as the newest parts that have any tell.

    :param still: rows that no later job has answered.
    :param shows_rows: whether reasons may quote their rows.
    """
    ragged = with_failures(parts)
    sizes = accumulate(part.bytes for part in ragged)
    few = [part for part, size in zip(ragged, sizes, strict=True) if size <= _LARGEST][:_MOST_OPENED]

    def read(part: Part) -> pa.Table | None:
        with suppress(RaybatchError):
            return _failed_rows(read_columns(folder, part, FAILED_COLUMNS), still)
        return None

    failures: list[RowFailure] = []
    examples: dict[str, list[FailedExample]] = {}
    for bad in filter(None, in_order(read, few)):
        failures += [RowFailure(one["step"], one["reason"]) for one in bad["failure"].to_pylist()]
        for step, found in examples_of(bad).items():
            examples[step] = telling([*examples.get(step, []), *found])
    reasons = main_reasons(failures, shows_rows=shows_rows)
    return [
        FailureGroup(step=step, rows=rows, reason=reasons[step][1], examples=examples.get(step, []))
        for step, rows in Counter(failure.step for failure in failures).most_common()
    ]


def _samples(folder: Folder, parts: Sequence[Part], spec: BatchInferenceSpec) -> list[Sample]:
    """Good rows of the first part, the last one, and one between them."""
    good = sorted(
        (part for part in parts if part.ok and part.bytes <= _LARGEST_SAMPLED), key=lambda p: p.first
    )
    chosen = {number: good[number] for number in (0, len(good) // 2, len(good) - 1)} if good else {}
    found: dict[int, Sample] = {}
    for part in chosen.values() if spec.report_samples else ():
        with suppress(Exception):  # some rows less
            table = read_columns(folder, part, (*FAILED_COLUMNS, "output"))
            rows = table.filter(table["ok"])
            *earlier, last = map(task_of, spec.questions())
            tasks = [*earlier, last.measured([rows["output"]])]
            found |= {one.ordinal: one for one in samples_of(rows, tasks, spec.report_samples, {})}
    return lowest(list(found.values()), spec.report_samples)


def _failed_rows(table: pa.Table, still: RowMask | None) -> pa.Table:
    failed = ~table["ok"].to_numpy()
    if still is not None:
        ordinals = table["ordinal"].to_numpy()
        inside = ordinals < len(still)
        failed[inside] &= still[ordinals[inside]]
    return table.filter(pa.array(failed))
