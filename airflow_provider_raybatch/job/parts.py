# SPDX-License-Identifier: Apache-2.0
"""Parts: what a submission has finished, as files that are whole or not there. They are the only ledger.

A part holds the rows of one chunk with their ordinal (position in the frozen input), their input columns, and
either the output or the failure. Input and output are struct columns, so that no name of the user's can
collide with ours.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.base import Response
from airflow_provider_raybatch.job.request import RowFailure
from airflow_provider_raybatch.job.storage import Folder

COMPLETION = pa.struct([("text", pa.string()), ("finish_reason", pa.string()), ("output_tokens", pa.int64())])
FAILURE = pa.struct([("step", pa.string()), ("reason", pa.string()), ("request", pa.string())])


def output_type(keeps_completions: bool) -> pa.StructType:
    """The output columns, in their order.

    ``response`` and ``finish_reason`` are those of the first completion; tokens count all of them.
    """
    fields = [
        ("response", pa.string()),
        ("finish_reason", pa.string()),
        ("input_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
    ]
    if keeps_completions:
        fields.append(("completions", pa.list_(COMPLETION)))
    return pa.struct(fields)


@dataclass(frozen=True)
class Outcome:
    """What became of one row.

    :param request: the request as JSON (or the raw text of an unreadable row); kept for failures only.
    """

    ordinal: int
    result: Response | RowFailure
    request: str = ""


@dataclass(frozen=True)
class Part:
    """One part of the ledger. `first` and `last` are ordinals; `path` is relative to the destination."""

    path: str
    rows: int
    ok: int
    first: int
    last: int
    bytes: int


def run_folder(spec: BatchInferenceSpec, listing_digest: str) -> str:
    """Where a task keeps the parts of one input and one question, relative to the destination."""
    if spec.submission is None:
        raise ValueError("submission: only a submitted spec has a place for its parts")
    question = f"{spec.response_digest[:16]}-{listing_digest[:16]}"
    return f"_raybatch/parts/{spec.submission.task.digest[:16]}/{question}"


def write(
    folder: Folder, path: str, columns: pa.Table, outcomes: Sequence[Outcome], keeps_completions: bool
) -> Part:
    """Write the rows of a chunk as one part.

    :param columns: the input columns of exactly these rows.
    :raises StorageError: it can't be written.
    """
    ok = [isinstance(outcome.result, Response) for outcome in outcomes]
    arrays: dict[str, pa.Array] = {
        "ordinal": pa.array([outcome.ordinal for outcome in outcomes], pa.uint64()),
        "ok": pa.array(ok, pa.bool_()),
        "failure": pa.array([_failure(outcome) for outcome in outcomes], FAILURE),
        "output": pa.array([_output(outcome.result) for outcome in outcomes], output_type(keeps_completions)),
    }
    if columns.num_columns:
        arrays["input"] = pa.StructArray.from_arrays(
            [_one_chunk(column) for column in columns.columns],
            fields=[_nullable(field) for field in columns.schema],
        )
    buffer = io.BytesIO()
    pq.write_table(pa.table(arrays), buffer, compression="zstd")
    content = buffer.getvalue()
    folder.write(path, content)
    ordinals = [outcome.ordinal for outcome in outcomes]
    return Part(path, len(outcomes), sum(ok), min(ordinals), max(ordinals), len(content))


def scan(folder: Folder, run: str) -> tuple[list[Part], npt.NDArray[np.uint64]]:
    """The parts of all earlier submissions, and the ordinals of their good rows, sorted."""
    parts: list[Part] = []
    done: list[npt.NDArray[np.uint64]] = []
    for entry in folder.list(run):
        if not entry.path.endswith(".parquet"):
            continue
        with folder.open(entry.path) as stream:
            table = pq.read_table(stream, columns=["ordinal", "ok"])
        ordinals = table["ordinal"].to_numpy()
        if len(ordinals) == 0:
            continue
        good = ordinals[table["ok"].to_numpy(zero_copy_only=False)]
        parts.append(
            Part(entry.path, len(ordinals), len(good), int(ordinals.min()), int(ordinals.max()), entry.size)
        )
        done.append(good)
    return parts, np.unique(np.concatenate(done)) if done else np.empty(0, dtype=np.uint64)


def _output(result: Response | RowFailure) -> dict[str, object] | None:
    if isinstance(result, RowFailure):
        return None
    first = result.completions[0]
    return {
        "response": first.text,
        "finish_reason": first.finish_reason,
        "input_tokens": result.input_tokens,
        "cached_tokens": result.cached_tokens,
        "output_tokens": sum(completion.output_tokens for completion in result.completions),
        "completions": [
            {"text": c.text, "finish_reason": c.finish_reason, "output_tokens": c.output_tokens}
            for c in result.completions
        ],
    }


def _failure(outcome: Outcome) -> dict[str, str] | None:
    if isinstance(outcome.result, Response):
        return None
    return {"step": outcome.result.step, "reason": outcome.result.reason, "request": outcome.request}


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_nullable(True).remove_metadata()


def good_rows(folder: Folder, parts: Sequence[Part], rows: int) -> int:
    """How many of the first `rows` rows have a good response in any of `parts`."""
    if all(part.ok == part.rows and part.last < rows for part in parts) and not _overlap(parts):
        return sum(part.ok for part in parts)
    good = []
    for part in parts:
        with folder.open(part.path) as stream:
            table = pq.read_table(stream, columns=["ordinal", "ok"])
        good.append(table["ordinal"].to_numpy()[table["ok"].to_numpy(zero_copy_only=False)])
    return int(np.searchsorted(np.unique(np.concatenate(good)), rows)) if good else 0


def first_failure(folder: Folder, parts: Sequence[Part]) -> str:
    """Step and reason of one failed row, as an example."""
    for part in parts:
        if part.ok < part.rows:
            with folder.open(part.path) as stream:
                failures = pq.read_table(stream, columns=["failure"])["failure"].to_pylist()
            failure = next(failure for failure in failures if failure is not None)
            return f"for example, {failure['step']}: {failure['reason']}"
    return "no example is left"


def _overlap(parts: Sequence[Part]) -> bool:
    ordered = sorted(parts, key=lambda part: part.first)
    return any(one.last >= other.first for one, other in pairwise(ordered))
