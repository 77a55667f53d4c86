# SPDX-License-Identifier: Apache-2.0
"""Dead letters of failed rows, and a summary of them where a job publishes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from ray.exceptions import RayTaskError

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError, rows_kept
from airflow_provider_raybatch.contract.layout import DEAD_LETTER, data_file
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.failures.diagnosis import diagnose
from airflow_provider_raybatch.job.failures.public_reasons import counted
from airflow_provider_raybatch.job.output.rows import json_line, row_values
from airflow_provider_raybatch.job.parts.ledger import RowMask, look_back
from airflow_provider_raybatch.job.parts.part import FAILED_COLUMNS, Part, read_columns, with_failures
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder

_FILE_BYTES = 16 * 1024 * 1024
_ABOUT_TIME = frozenset({FailureClass.TIMEOUT, FailureClass.LIMIT_REACHED, FailureClass.CANCELLED})
_ABOUT_FAILED_ROWS = frozenset({FailureClass.TOO_MANY_ERRORS, FailureClass.POISON_ROW})


def failures_of(folder: Folder, manifest: BatchManifest, *, shows_rows: bool) -> str:
    """Summary of a dataset's dead letters, with their location.

    :param shows_rows: whether a reason may quote its row.
    """
    place = str(manifest.dead_letter_uri)
    letters = (
        json.loads(line)
        for file in folder.list(place.removeprefix(f"{folder.uri}/"))
        for line in folder.read(file.path).splitlines()
    )
    failures = ((letter["ordinal"], RowFailure(letter["step"], letter["reason"])) for letter in letters)
    summary = counted(failures, shows_rows=shows_rows)
    return f"the dead letters are in {place}: {summary}"


def with_rows_left(error: Exception, job: Job, rows: int) -> Exception:
    """Write the dead letters of a job that ends with `error`; add to its message where, and what is kept.

    :param rows: rows of the input.
    :returns: `error` itself if nothing is to be added, or if the storage gives no answer.
    """
    failure_class, sentence = diagnose(error)
    if failure_class is FailureClass.SUPERSEDED:
        return error  # the destination is another submission's
    run_folder, _, driver = job.part_folder.rpartition("/")
    letters = f"{DEAD_LETTER}/{driver}"
    added = [sentence.rstrip(".")]
    with suppress(Exception):  # what ended the job matters more than this
        ledger = look_back(job.folder, run_folder, rows)
        if ledger.rows or failure_class in _ABOUT_TIME:
            keeps = job.spec.on_clear != "regenerate"
            added.append(rows_kept(ledger.rows, rows, failure_class, keeps))
        if kept := _answers_kept(job, rows):
            added.append(f"answers of earlier steps are kept, too: {kept}")
        own = [part for part in ledger.parts if part.driver == driver]
        if failure_class in _ABOUT_FAILED_ROWS or any(part.ok < part.rows for part in own):
            failed = _write(job.folder, letters, ledger.parts, ledger.failures > 0)
            if failed:
                place = f"{count_of(len(failed), 'failed row')} are in {job.folder.uri}/{letters}"
                added.append(
                    f"the dead letters of {place}: {counted(failed, shows_rows=job.spec.shows_rows)}"
                )
    if len(added) == 1:
        return error
    text = f"{'; '.join(added)}."
    if not isinstance(error, RaybatchError) or isinstance(error, RayTaskError):
        return RaybatchError(text, failure_class)
    return error.reworded(text)


def _answers_kept(job: Job, rows: int) -> str:
    """How many answers there are to each step before the last one; empty where there are none."""
    found = []
    for step in job.before:
        kept = look_back(job.folder, step.run_folder, rows).rows
        if kept and step.spec.step_name:
            found.append(f"{step.spec.step_name} {kept:,}")
    return ", ".join(found)


def _write(folder: Folder, path: str, parts: Sequence[Part], failed: RowMask) -> list[tuple[int, RowFailure]]:
    """Write one dead letter for each row of `failed`, from the newest part that has it."""
    left = failed.copy()
    found: list[tuple[int, RowFailure]] = []
    lines: list[bytes] = []
    files = 0

    def flush() -> None:
        nonlocal files
        if lines:
            folder.write(data_file(path, files, "jsonl"), b"".join(lines))
            lines.clear()
            files += 1

    for table in _failed_tables(folder, parts):
        ordinals = table["ordinal"].to_numpy()
        wanted = ordinals < len(left)
        wanted[wanted] = left[ordinals[wanted]]
        left[ordinals[wanted]] = False
        rows = table.filter(pa.array(wanted))
        for ordinal, failure in zip(rows["ordinal"].to_pylist(), rows["failure"].to_pylist(), strict=True):
            found.append((ordinal, RowFailure(failure["step"], failure["reason"])))
        lines.append(dead_letters(rows))
        if sum(map(len, lines)) >= _FILE_BYTES:
            flush()
    flush()
    return found


def _failed_tables(folder: Folder, parts: Sequence[Part]) -> Iterator[pa.Table]:
    """The failed rows of each part that has any, newest part first."""

    def read(part: Part) -> pa.Table:
        table = read_columns(folder, part, FAILED_COLUMNS)
        return table.filter(pa.array(~table["ok"].to_numpy()))

    return in_order(read, with_failures(parts))


def dead_letters(table: pa.Table) -> bytes:
    """Failed rows of parts as JSON lines: position, id, step, reason, request and input columns.

    A row that failed after its response came has that, too.
    """
    inputs: Sequence[Any] = [None] * table.num_rows
    if "input" in table.schema.names:
        inputs = row_values(pa.Table.from_struct_array(table["input"]))
    lines = []
    failures = table["failure"].to_pylist()
    ordinals, ids = table["ordinal"].to_pylist(), table["id"].to_pylist()
    answers: list[Any] = [None] * table.num_rows
    if "output" in table.schema.names:
        answered_as = table.schema.field("output").type[0].name
        answers = pc.struct_field(table["output"], [0]).to_pylist()
    for ordinal, row_id, failure, row, answer in zip(ordinals, ids, failures, inputs, answers, strict=True):
        named = {} if row_id is None else {"id": row_id}
        answered = {} if answer is None else {answered_as: answer}
        lines.append(json_line({"ordinal": ordinal, **named, **failure, **answered, "row": row}))
    return b"".join(lines)
