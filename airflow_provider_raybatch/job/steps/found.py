# SPDX-License-Identifier: Apache-2.0
"""Which answers of a step a job has found instead of generated, in older parts and in the response store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.parts.part import Part, tokens_of
from airflow_provider_raybatch.job.parts.reading import DamagedPartError, read_part
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.in_order import in_order

_TOKENS = ("input_tokens", "output_tokens")


@dataclass(frozen=True)
class Found:
    """Answers of a step by what made them needless to ask for, and what its requests cost.

    :param resumed: rows whose answers earlier jobs had generated, and `reused`, which the response store had.
    :param resumed_tokens: input and output tokens of these answers; so are `reused_tokens`.
    :param output_tokens: of all of them.
    :param saved: of all their tokens, those that the run did not pay for in an earlier attempt either.
    :param paid: input and output tokens of all requests that the run paid for.
    """

    resumed: int = 0
    reused: int = 0
    resumed_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    saved: int = 0
    paid: int = 0

    def __add__(self, other: Found) -> Found:
        """The sums of both."""
        mine, theirs = vars(self).values(), vars(other).values()
        return Found(*(one + another for one, another in zip(mine, theirs, strict=True)))


def found_in(folder: Folder, parts: Sequence[Part], submission: Submission) -> Found:
    """What the parts of one step say, if a submission commits the dataset.

    :raises StorageError: the storage gives no answer.
    """

    def of_part(part: Part) -> Found:
        # No row of the dataset comes from a damaged one.
        with suppress(DamagedPartError):
            extent: Literal["exact", "columns"] = "exact" if _is_own(part, submission) else "columns"
            return read_part(folder, part.path, part.bytes, lambda file: _of(file, part, submission), extent)
        return Found()

    return sum(in_order(of_part, parts), Found())


def _is_own(part: Part, submission: Submission) -> bool:
    return part.may_be_generated and part.submission_id == submission.submission_id


def _of(file: pq.ParquetFile, part: Part, submission: Submission) -> Found:
    is_of_run = part.is_of(submission.run_id)
    paid = tokens_of(file.metadata)[1] if is_of_run else 0
    if _is_own(part, submission):
        return Found(paid=paid)
    # Without the texts, which are most of a part.
    rows = file.read(["ok", "origin", *(f"output.{name}" for name in _TOKENS)])
    rows = rows.filter(rows["ok"])
    tokens = [pc.struct_field(rows["output"], name) for name in _TOKENS]
    is_stored = pc.equal(rows["origin"], "stored")
    is_paid = pc.and_(pc.equal(rows["origin"], "generated"), pa.scalar(is_of_run))

    def total(columns: Sequence[pa.ChunkedArray], mask: pa.ChunkedArray | None = None) -> int:
        chosen = columns if mask is None else [column.filter(mask) for column in columns]
        return sum(int(pc.sum(column).as_py() or 0) for column in chosen)

    reused, reused_tokens = int(pc.sum(is_stored).as_py() or 0), total(tokens, is_stored)
    return Found(
        resumed=rows.num_rows - reused,
        reused=reused,
        resumed_tokens=total(tokens) - reused_tokens,
        reused_tokens=reused_tokens,
        output_tokens=total(tokens[1:]),
        saved=total(tokens, pc.invert(is_paid)),
        paid=paid,
    )
