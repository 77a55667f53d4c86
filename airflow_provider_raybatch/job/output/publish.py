# SPDX-License-Identifier: Apache-2.0
"""Write one published file: the rows of a range of ordinals, each exactly once, in input order.

This removes duplicates, merges small parts, and restores the input's order, with one range in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.arguments.data import REUSED_COLUMN, OutputFormat
from airflow_provider_raybatch.contract.layout import data_file
from airflow_provider_raybatch.job.failures.public_reasons import main_reasons
from airflow_provider_raybatch.job.input.table import kinds_of, members, parquet_file, restored
from airflow_provider_raybatch.job.output.dead_letters import dead_letters
from airflow_provider_raybatch.job.output.openai_batch.lines import SCHEMA, AnswerLines
from airflow_provider_raybatch.job.output.rows import (
    Range,
    blank_rows,
    dataset_rows,
    in_groups,
    json_line,
    row_values,
)
from airflow_provider_raybatch.job.output.schema import cast, common_type
from airflow_provider_raybatch.job.output.tally import Tally, Wanted, tally_of
from airflow_provider_raybatch.job.parts.part import inputs_of, read_between
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.steps.counting import Answered, answered
from airflow_provider_raybatch.job.steps.known import old_answers
from airflow_provider_raybatch.job.tasks.base import Task, Totals
from airflow_provider_raybatch.job.tasks.postprocess import Postprocess, Seen, apply, load, note, with_added
from airflow_provider_raybatch.storage.folder import Folder

_ROWS_AT_ONCE = 4096
"""As Python values, rows take a multiple of the memory."""


@dataclass(frozen=True)
class Target:
    """What all ranges of a commit share.

    :param data: folder of the good rows, relative to the destination.
    :param dead_letter: folder of the failed rows.
    :param inputs: type of each input column.
    :param own_parts: folder of the parts of the submission that publishes, relative to the destination.
    :param run: see :attr:`Submission.run_id`.
    :param postprocess: the user's function that adds columns, if the job has one.
    :param errors: folder of OpenAI's error files, where `lines` are written.
    :param lines: what writes rows as lines of OpenAI's files, if `format` is that.
    :param shown: rows that the report shows.
    """

    folder: Folder
    data: str
    dead_letter: str
    format: OutputFormat
    inputs: dict[str, pa.DataType]
    task: Task
    own_parts: str = ""
    run: str = ""
    postprocess: Postprocess | None = None
    errors: str = ""
    lines: AnswerLines | None = None
    shown: Wanted = field(default_factory=lambda: Wanted(0, 0))

    @property
    def schema(self) -> pa.Schema:
        """Of the published rows."""
        return self.columns if self.lines is None else SCHEMA

    @property
    def columns(self) -> pa.Schema:
        """Of good rows before they are written in the format of the dataset."""
        names = self.task.names
        outputs = [(names[column.name], column.type) for column in self.task.published_type]
        reused = [(names[REUSED_COLUMN], pa.string())] if REUSED_COLUMN in names else []
        added = self.postprocess.types.items() if self.postprocess else ()
        return pa.schema([*self.inputs.items(), *outputs, *reused, *self.task.derived.items(), *added])


@dataclass(frozen=True)
class PublishedRange:
    """What a range became. `path` is relative to the destination, ``None`` if it holds no good row.

    :param rows: good rows of the input, and `errors` failed ones.
    :param dataset_rows: rows of the file.
    :param reasons: see :func:`~airflow_provider_raybatch.job.failures.public_reasons.main_reasons`.
    :param blank: see :class:`~airflow_provider_raybatch.contract.run_numbers.Counts`.
    :param saved: input and output tokens of good rows that the run did not pay for, by their origin.
    :param carried: of good rows that earlier jobs had asked, those of this run's earlier attempts among them.
    :param generated: output tokens of good rows that this submission generated.
    :param tally: of all its rows, for the report.
    :param answered: what each of several steps has answered.
    """

    path: str | None
    bytes: int
    rows: int
    errors: int
    dataset_rows: int = 0
    totals: Totals = field(default_factory=Totals)
    failed_steps: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)
    blank: int = 0
    origins: dict[str, int] = field(default_factory=dict)
    saved: dict[str, int] = field(default_factory=dict)
    carried: int = 0
    generated: int = 0
    tally: Tally = field(default_factory=Tally)
    answered: list[Answered] = field(default_factory=list)


def publish(range_: Range, target: Target) -> PublishedRange:
    """Write the good rows of a range to one file, the failed ones to another."""
    table = _select(range_, target)
    if target.postprocess is not None:
        table = with_added(table, target.folder, target.postprocess, range_.number)
    good, bad = _where(table, table["ok"]), table.filter(pc.invert(table["ok"]))
    tasks = [*(step.task for step in range_.answers), target.task]
    result = PublishedRange(
        None,
        0,
        good.num_rows,
        bad.num_rows,
        tally=tally_of(good, bad, tasks, target.shown),
        blank=blank_rows(good, bad, tasks[0].spec),
        answered=answered(
            target.task.spec, good, bad, [old_answers(target.folder, step) for step in range_.answers]
        ),
    )
    if good.num_rows:
        count, rows = dataset_rows(good, target.task)
        flat = (some if target.lines else _flatten(some, target) for some in rows)
        path, size = write_rows(flat, range_.number, target)
        bill = _billed(good.select(["origin", "paid", "output"]), target.task)
        result = replace(result, path=path, bytes=size, dataset_rows=count, **bill)
    if bad.num_rows:
        _write_failed(bad, range_.number, target)
        result = replace(
            result,
            failed_steps=dict(Counter(failure.step for failure in _failures(bad))),
            reasons=main_reasons(_failures(bad), shows_rows=target.task.spec.shows_rows),
        )
    return result


def _write_failed(bad: pa.Table, number: int, target: Target) -> None:
    """Write the dead letters of a range, and the error file of its lines."""
    if target.lines is not None:
        target.folder.write(data_file(target.errors, number, "jsonl"), target.lines.errors(bad))
    letters = b"".join(map(dead_letters, in_groups(bad, _ROWS_AT_ONCE)))
    target.folder.write(data_file(target.dead_letter, number, "jsonl"), letters)


def _billed(rows: pa.Table, task: Task) -> dict[str, Any]:
    """Fields of :class:`PublishedRange` about the tokens of good rows, and who paid for them."""
    own = _where(rows, pc.equal(rows["origin"], "generated"))
    return {
        "totals": task.totals(rows["output"]),
        "origins": {one["values"]: one["counts"] for one in rows["origin"].value_counts().to_pylist()},
        "saved": _by_origin(_where(rows, pc.invert(rows["paid"])), task),
        "carried": _by_origin(rows, task).get("carried", 0),
        "generated": task.totals(own["output"]).output_tokens,
    }


def _failures(bad: pa.Table) -> Iterator[RowFailure]:
    found = (one for some in in_groups(bad, _ROWS_AT_ONCE) for one in some["failure"].to_pylist())
    return (RowFailure(one["step"], one["reason"]) for one in found)


def _by_origin(rows: pa.Table, task: Task) -> dict[str, int]:
    """Input and output tokens of rows by their origin."""
    tokens = {}
    for origin in pc.unique(rows["origin"]).to_pylist():
        totals = task.totals(_where(rows, pc.equal(rows["origin"], origin))["output"])
        tokens[origin] = totals.input_tokens + totals.output_tokens
    return tokens


def write_rows(rows: Iterable[pa.Table], number: int, target: Target) -> tuple[str, int]:
    """Write rows as the dataset's file of this number.

    :param rows: in the columns of the dataset; those of parts where `target` has `lines`.
    :returns: its path, relative to the destination, and its size.
    """
    if target.format == "parquet":
        content = parquet_file(rows, target.schema)
    elif target.lines is not None:
        content = b"".join(map(target.lines.answers, rows))
    else:
        content = b"".join(json_line(row) for some in rows for row in row_values(some))
    path = data_file(target.data, number, "parquet" if target.format == "parquet" else "jsonl")
    target.folder.write(path, content)
    return path, len(content)


def postprocess(range_: Range, target: Target) -> dict[str, Seen]:
    """Call the user's function with the good rows of a range; :func:`publish` adds what it returns.

    :returns: the columns that it returned.
    :raises RaybatchError: the function can't be imported, or no type fits all values of a column.
    """
    if target.postprocess is None:
        return {}
    table = _select(range_, target)
    good = table.filter(table["ok"])
    inputs = inputs_of(good)
    rows = pa.table({
        name: _input_column(inputs, good.num_rows, name, kind) for name, kind in target.inputs.items()
    })
    responses = target.task.published(good["output"])[0]
    taken = frozenset(name.lower() for name in (*target.inputs, *target.task.column_names))
    made = list(apply(rows, responses, load(target.postprocess.function), taken))
    path = target.postprocess.path(range_.number)
    return note(target.folder, path, good["ordinal"].to_pylist(), made)


def _select(range_: Range, target: Target) -> pa.Table:
    """The rows of the range, one per ordinal: good before failed, then of the part with the last path.

    A row that the task can't derive its columns of has failed. Parts that lie one behind the other are not
    copied: a copy takes as much memory as they do.
    """
    tables = []
    for age, part in enumerate(sorted(range_.parts, key=lambda part: part.path)):
        rows = _typed(read_between(target.folder, part, range_.first, range_.stop), target)
        generated = pc.equal(rows["origin"], "generated")
        rows = rows.append_column("paid", pc.and_(generated, pa.scalar(part.is_of(target.run))))
        if not part.path.startswith(target.own_parts):
            rows = _carried(rows)
        ordinals = rows["ordinal"].to_numpy()
        rows = _where(rows, pa.array((ordinals >= range_.first) & (ordinals < range_.stop)))
        tables.append(rows.append_column("age", pa.array(np.full(rows.num_rows, age, dtype=np.int32))))
    tables.sort(key=lambda rows: rows["ordinal"][0].as_py() if rows.num_rows else -1)
    table = pa.concat_tables(_aligned(tables, target), promote_options="permissive")
    if (np.diff(table["ordinal"].to_numpy().astype(np.int64)) > 0).all():
        return target.task.with_derived(table)
    order = pc.sort_indices(
        table, sort_keys=[("ordinal", "ascending"), ("ok", "descending"), ("age", "descending")]
    ).to_numpy()
    _, first_of_each = np.unique(table["ordinal"].to_numpy()[order], return_index=True)
    return target.task.with_derived(table.take(pa.array(order[first_of_each])))


def _where(rows: pa.Table, condition: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The rows that fulfil a condition; without a copy where all do."""
    return rows if pc.all(condition, skip_nulls=False, min_count=0).as_py() else rows.filter(condition)


def _typed(rows: pa.Table, target: Target) -> pa.Table:
    """The input of a source without types, in the types of the dataset; other columns as text."""
    kinds = kinds_of(rows.schema)
    if not kinds or "input" not in rows.schema.names:
        return rows
    columns = {
        name: restored(array, kind, target.inputs.get(name, pa.string()))
        if (kind := kinds.get(name)) is not None
        else array
        for name, array in inputs_of(rows).items()
    }
    return _with_input(rows, columns)


def _carried(rows: pa.Table) -> pa.Table:
    """Mark as carried over what an earlier submission generated."""
    origin = pc.if_else(pc.equal(rows["origin"], "generated"), "carried", rows["origin"])
    return rows.set_column(rows.schema.get_field_index("origin"), "origin", origin)


def _aligned(tables: list[pa.Table], target: Target) -> list[pa.Table]:
    """The tables with `input` in the types of the dataset; concatenation alone refuses some.

    A column of failed rows alone, which the dataset lacks, is kept for the dead letters.
    """
    types: dict[str, dict[pa.DataType, None]] = {}
    for table in tables:
        for column in table.schema.field("input").type if "input" in table.schema.names else ():
            types.setdefault(column.name, {})[target.inputs.get(column.name, column.type)] = None
    if not types:
        return tables
    kinds = {name: common_type(*found) for name, found in types.items()}
    aligned = []
    for table in tables:
        inputs, size = inputs_of(table), table.num_rows
        columns = {name: _input_column(inputs, size, name, kind) for name, kind in kinds.items()}
        aligned.append(_with_input(table, columns))
    return aligned


def _with_input(table: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    position = table.schema.get_field_index("input")
    array = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    if position < 0:
        return table.append_column("input", array)
    return table.set_column(position, "input", array)


def _input_column(inputs: dict[str, pa.Array], rows: int, name: str, kind: pa.DataType) -> pa.Array:
    return cast(inputs[name], kind) if name in inputs else pa.nulls(rows, kind)


def _flatten(table: pa.Table, target: Target) -> pa.Table:
    inputs = inputs_of(table)
    columns = [_input_column(inputs, table.num_rows, name, kind) for name, kind in target.inputs.items()]
    columns += target.task.published(table["output"])
    if REUSED_COLUMN in target.task.names:
        stored = pc.equal(table["origin"], "stored")
        columns.append(pc.if_else(stored, table["paid_by"], pa.scalar(None, pa.string())))
    columns += members(table["derived"]).values() if target.task.derived else ()
    if target.postprocess is not None:
        columns += members(table["added"]).values() if target.postprocess.types else ()
    return pa.table(columns, schema=target.columns)
