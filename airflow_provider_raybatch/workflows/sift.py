# SPDX-License-Identifier: Apache-2.0
"""Pass rows through steps; each step keeps rows, or drops them with a rule and a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.funnel import Funnel, FunnelStep
from airflow_provider_raybatch.workflows.rows import require
from airflow_provider_raybatch.workflows.writer import DatasetWriter

DROP_COLUMNS = ("dropped_by", "rule", "reason")
"""Columns of dropped rows: name of the step, rule, and reason."""
_BETWEEN = "\n\0\n"
"""Separator of joined texts: a separate word, so that texts don't run together."""


class Drop(NamedTuple):
    """Why a row is dropped: the name of the rule, and a clause about this row."""

    rule: str
    reason: str


class Checked(NamedTuple):
    """A checked batch: all its rows, perhaps with more columns, and for each row a drop or ``None``."""

    batch: pa.RecordBatch
    drops: Sequence[Drop | None]


class SiftStep(Protocol):
    """A check of rows. A step may remember rows of earlier batches, so use it for one pass only."""

    name: str

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """Check each row. An empty batch gets the added columns, too."""


def sift(
    batches: Iterable[pa.RecordBatch],
    steps: Sequence[SiftStep],
    kept: DatasetWriter,
    dropped: DatasetWriter,
    tokens: str | None = None,
) -> Funnel:
    """Pass each row through `steps` until one drops it.

    :param kept: gets the rows that pass all steps, with the columns that steps added.
    :param dropped: gets the others, with the columns of the input and ``dropped_by``, ``rule``, ``reason``.
    :param tokens: a column of the input that counts tokens, summed in the funnel; default none.
    :raises WorkflowError: two steps have one name, or a column is missing.
    """
    names = [step.name for step in steps]
    if twice := [name for name in names if names.count(name) > 1]:
        raise WorkflowError(f"steps: two have the name {twice[0]!r}; give one of them another `name`.")
    funnel = Funnel([FunnelStep(name, tokens=0 if tokens else None) for name in ["input", *names]])
    for batch in batches:
        if tokens:
            _check_numbers(batch.schema, tokens)
        _count(funnel.steps[0], batch, tokens)
        current, original = batch, batch
        for step, figures in zip(steps, funnel.steps[1:], strict=True):
            checked = step(current)
            keep = pa.array([drop is None for drop in checked.drops], pa.bool_())
            _write_drops(dropped, step.name, original, checked.drops, keep)
            figures.dropped.update(drop.rule for drop in checked.drops if drop)
            current, original = checked.batch.filter(keep), original.filter(keep)
            _count(figures, original, tokens)
        kept.write(current)
    return funnel


def text_column(batch: pa.RecordBatch, name: str) -> list[str | None]:
    """The texts of a column.

    :raises WorkflowError: the dataset lacks the column, or it does not hold text.
    """
    require(batch.schema, name, "column")
    column = batch.column(name)
    if pa.types.is_null(column.type):
        return [None] * batch.num_rows
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise WorkflowError(f"column: {name!r} holds {kind} and not text; name a column of text.")
    texts: list[str | None] = column.to_pylist()
    return texts


def joined_texts(batch: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """The joined texts of some columns; null counts as empty."""
    texts = [text_column(batch, name) for name in columns]
    return [_BETWEEN.join(text or "" for text in row) for row in zip(*texts, strict=True)]


def with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """The batch with one more column.

    :raises WorkflowError: it has a column of this name.
    """
    if name in batch.schema.names:
        raise WorkflowError(
            f"columns: {name!r} is in the dataset already, and a step adds it; rename the dataset's column."
        )
    return batch.append_column(name, values)


def _check_numbers(schema: pa.Schema, name: str) -> None:
    require(schema, name, "tokens")
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise WorkflowError(
            f"tokens: {name!r} holds {kind} and not numbers; name a column that counts tokens."
        )


def _count(figures: FunnelStep, batch: pa.RecordBatch, tokens: str | None) -> None:
    figures.rows += batch.num_rows
    if tokens is not None:
        figures.tokens = (figures.tokens or 0) + (pc.sum(batch.column(tokens)).as_py() or 0)


def _write_drops(
    writer: DatasetWriter,
    step: str,
    rows: pa.RecordBatch,
    drops: Sequence[Drop | None],
    keep: pa.Array,
) -> None:
    gone = [drop for drop in drops if drop is not None]
    # Rows that an earlier sift dropped and a repair brought back have these columns; they are replaced.
    out = rows.filter(pc.invert(keep)).select([one for one in rows.schema.names if one not in DROP_COLUMNS])
    columns = ([step] * len(gone), [drop.rule for drop in gone], [drop.reason for drop in gone])
    for name, values in zip(DROP_COLUMNS, columns, strict=True):
        out = out.append_column(name, pa.array(values, pa.string()))
    writer.write(out)


def approximate_tokens(text: str) -> int:
    """A quarter of the UTF-8 bytes: about right for English, without a tokenizer."""
    return len(text.encode()) // 4


def count_tokens(
    batches: Iterable[pa.RecordBatch],
    column: str = "text",
    into: str = "tokens",
    count: Callable[[str], int] = approximate_tokens,
) -> Iterator[pa.RecordBatch]:
    """The batches with one more column, for the `tokens` of :func:`~.sift.sift`.

    :param column: column of the text; null has 0 tokens.
    :param into: name of the new column.
    :param count: tokens of a text, such as ``lambda text: len(tokenizer.encode(text))``.
    :raises WorkflowError: there is no such text column, or `into` is a column already.
    """
    for batch in batches:
        counts = [count(text or "") for text in text_column(batch, column)]
        yield with_column(batch, into, pa.array(counts, pa.int64()))
