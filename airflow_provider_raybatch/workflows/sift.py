# SPDX-License-Identifier: Apache-2.0
"""Pass rows through steps; each keeps rows, or drops them with a rule and a reason, and a funnel counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.opening import open_files
from airflow_provider_raybatch.dataset.rows import require
from airflow_provider_raybatch.dataset.writer import DatasetWriter
from airflow_provider_raybatch.report.words import markdown_table

DROP_COLUMNS = ("dropped_by", "rule", "reason")
"""Columns of dropped rows: name of the step, rule, and reason."""
_BETWEEN = "\n\0\n"
"""Separator of joined texts: a separate word, so that texts don't run together."""


@dataclass
class FunnelStep:
    """Rows left after one step.

    :param tokens: of these rows; ``None`` where no column counts tokens.
    :param dropped: rows by the rule that dropped them.
    """

    name: str
    rows: int = 0
    tokens: int | None = None
    dropped: Counter[str] = field(default_factory=Counter)

    def count(self, batch: pa.RecordBatch, tokens: str | None) -> None:
        """Count rows that are left; `tokens` names the column that counts their tokens."""
        self.rows += batch.num_rows
        if tokens is not None:
            self.tokens = (self.tokens or 0) + (pc.sum(batch.column(tokens)).as_py() or 0)


@dataclass
class Funnel:
    """Steps in order; the first one is the input, which drops nothing."""

    steps: list[FunnelStep] = field(default_factory=list)

    @classmethod
    def of_run(cls, name: str, result: Result, aws_conn_id: str | None = None) -> Funnel:
        """The rows of a batch inference, and those that it has answered.

        :param name: of the second step. Its rules are where rows failed, such as ``engine``, and with `steps`
            ``draft.engine``.
        :param result: what the operator returned.
        :raises UsageError: `result` has no manifest of a batch inference that can be read.
        """
        manifest = open_files(result, aws_conn_id).manifest
        if not isinstance(manifest, BatchManifest):
            raise UsageError(
                f"result: {manifest.manifest_uri!r} is not of a batch inference; give what its task returned."
            )
        counts = manifest.counts
        answered = FunnelStep(name, counts.ok, dropped=Counter(counts.errors_by_step))
        return cls([FunnelStep("input", counts.input), answered])

    def joined(self, later: Funnel) -> Funnel:
        """This funnel followed by the steps of another one, without the input of the other."""
        return Funnel([*self.steps, *later.steps[1:]])

    def as_json(self) -> list[dict[str, Any]]:
        """For a card or an XCom."""
        return [
            {"step": one.name, "rows": one.rows, "tokens": one.tokens, "dropped": dict(one.dropped)}
            for one in self.steps
        ]

    @classmethod
    def from_json(cls, steps: list[dict[str, Any]]) -> Funnel:
        """The inverse of :meth:`as_json`."""
        return cls([
            FunnelStep(one["step"], one["rows"], one["tokens"], Counter(one["dropped"])) for one in steps
        ])

    def as_markdown(self) -> str:
        """A table: step, rows left, share of the input, tokens left, rows dropped by rule."""
        first = self.steps[0].rows if self.steps else 0
        rows = []
        for one in self.steps:
            share = f"{one.rows / first:.1%}" if first else "-"
            tokens = "-" if one.tokens is None else f"{one.tokens:,}"
            rules = ", ".join(f"{rule}: {count:,}" for rule, count in one.dropped.most_common()) or "-"
            rows.append([one.name, one.rows, share, tokens, rules])
        return markdown_table(["step", "rows left", "of input", "tokens left", "dropped"], rows)


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
    :raises UsageError: two steps have one name, or a column is missing.
    """
    names = [step.name for step in steps]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"steps: two have the name {twice[0]!r}; give one of them another `name`.")
    funnel = Funnel([FunnelStep(name, tokens=0 if tokens else None) for name in ["input", *names]])
    for batch in batches:
        if tokens:
            _check_numbers(batch.schema, tokens)
        funnel.steps[0].count(batch, tokens)
        current, original = batch, batch
        for step, figures in zip(steps, funnel.steps[1:], strict=True):
            checked = step(current)
            keep = pa.array([drop is None for drop in checked.drops], pa.bool_())
            _write_drops(dropped, step.name, original, checked.drops, keep)
            figures.dropped.update(drop.rule for drop in checked.drops if drop)
            current, original = checked.batch.filter(keep), original.filter(keep)
            figures.count(original, tokens)
        kept.write(current)
    return funnel


def text_column(batch: pa.RecordBatch, name: str) -> list[str | None]:
    """The texts of a column.

    :raises UsageError: the dataset lacks the column, or it does not hold text.
    """
    require(batch.schema.names, [name], "column")
    column = batch.column(name)
    if pa.types.is_null(column.type):
        return [None] * batch.num_rows
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise UsageError(f"column: {name!r} holds {kind} and not text; name a column of text.")
    texts: list[str | None] = column.to_pylist()
    return texts


def joined_texts(batch: pa.RecordBatch, columns: Sequence[str]) -> list[str]:
    """The joined texts of some columns; null counts as empty."""
    texts = [text_column(batch, name) for name in columns]
    return [_BETWEEN.join(text or "" for text in row) for row in zip(*texts, strict=True)]


def with_column(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    """The batch with one more column.

    :raises UsageError: it has a column of this name.
    """
    if name in batch.schema.names:
        raise UsageError(
            f"columns: {name!r} is in the dataset already, and a step adds it; rename the dataset's column."
        )
    return batch.append_column(name, values)


def _check_numbers(schema: pa.Schema, name: str) -> None:
    require(schema.names, [name], "tokens")
    kind = schema.field(name).type
    if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise UsageError(f"tokens: {name!r} holds {kind} and not numbers; name a column that counts tokens.")


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
    :raises UsageError: there is no such text column, or `into` is a column already.
    """
    for batch in batches:
        counts = [count(text or "") for text in text_column(batch, column)]
        yield with_column(batch, into, pa.array(counts, pa.int64()))
