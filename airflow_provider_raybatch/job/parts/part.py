# SPDX-License-Identifier: Apache-2.0
"""Parts: what a submission has finished, as files that are whole or missing. They are the only ledger.

A part holds rows of one chunk with both their identities (the ordinal, which is their position in the frozen
input, or the user's id beside it; and the request key), their input columns, and either the output or the
failure. Input and output are struct columns, so that names of the user can't collide with ours.

A part's name has its size, its ordinals, and how many of them are good, so that a listing shows what is
finished and which parts were cut off. The ordinals are a few runs, because slow rows lie far from the rest of
their part. Each run is a row group of the file, which is read alone where only its rows are needed.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import DAMAGED
from airflow_provider_raybatch.job.input.table import KINDS, members, one_array
from airflow_provider_raybatch.job.parts.reading import MOST_BYTES, cumulated, portions, read_part, together
from airflow_provider_raybatch.job.request.key_array import KEY
from airflow_provider_raybatch.job.row import SKIPPED, Response, RowFailure, RowOutcome
from airflow_provider_raybatch.storage.file import Entry, with_footer_checksum
from airflow_provider_raybatch.storage.folder import Folder

Origin = Literal["generated", "carried", "stored", "duplicate"]
"""Where a response came from: paid for by the part's own submission, or found in an earlier part of the task,
in the response store, or with an equal request of the same input."""

_DECODED = b"raybatch.decoded"
_TOKENS = b"raybatch.tokens"
_FILLED = b"raybatch.filled"
_STEPS = 16
FOUND = ("carried-", "stored-", "duplicate-")
"""Names of parts whose answers were found begin so, by their origin."""
_NAME = re.compile(r"\.(\d+)\.(\d+-\d+(?:_\d+-\d+)*)\.(\d+)\.(\d+)\.parquet$")
_MOST_RUNS = 6
"""With ordinals of ten digits, a name stays below the 255 bytes that file systems take."""
_SMALL_GAP = 256
"""Runs with fewer ordinals between them are one run, if the part has many."""
FAILED_COLUMNS = ("ordinal", "ok", "id", "failure", "input")
"""What is read of failed rows."""
FAILURE = pa.struct([("step", pa.string()), ("reason", pa.string()), ("request", pa.string())])


@dataclass(frozen=True)
class Part:
    """One part of the ledger. `first` and `last` are ordinals; `path` is relative to the destination."""

    path: str
    rows: int
    ok: int
    first: int
    last: int
    bytes: int

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """First and last ordinal of each run, ascending; a run may have gaps."""
        found = _NAME.search(self.path)
        return _runs_in(found[2]) if found else ((self.first, self.last),)

    @property
    def is_solid(self) -> bool:
        """Whether every ordinal of its runs is there and good."""
        return self.ok == self.rows == sum(last - first + 1 for first, last in self.runs)

    def inside(self, first: int, stop: int) -> int:
        """How many ordinals from `first` to before `stop` lie in its runs."""
        return sum(max(0, min(end + 1, stop) - max(begin, first)) for begin, end in self.runs)

    @property
    def may_be_generated(self) -> bool:
        """Whether its submission may have paid for rows of it; the names of other parts tell their origin."""
        return not self.path.rpartition("/")[2].startswith(FOUND)

    @property
    def submission_id(self) -> str:
        """Of the job that wrote it."""
        return self.driver.partition("~")[0]

    def is_of(self, run: str) -> bool:
        """Whether a submission of the run wrote it; see :attr:`Submission.run_id`."""
        return self.submission_id.rpartition("-")[0] == run

    @property
    def driver(self) -> str:
        """Its driver's folder, see :func:`~airflow_provider_raybatch.contract.layout.driver_folder`."""
        return self.path.split("/")[-2]


class RowOutputs(Protocol):
    """What parts keep of rows and their responses; a task says."""

    def stored_inputs(self, inputs: pa.Table) -> pa.Table:
        """The input columns that parts have."""

    def outputs(self, responses: Sequence[Response | None]) -> pa.StructArray:
        """The outputs of responses; null without one."""


def write_all(
    folder: Folder,
    stem: str,
    columns: pa.Table,
    outcomes: Sequence[RowOutcome],
    task: RowOutputs,
    outputs: pa.StructArray | None = None,
) -> list[Part]:
    """Write rows of a chunk, in as many parts as their outcomes need.

    :param stem: the path, relative to `folder`, to which size, ordinals and counts are added.
    :param columns: the input columns of exactly these rows.
    :param outputs: see :func:`outputs_of`, if they are made already.
    """
    size = len(outcomes)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {
        "ordinal": pa.array([outcome.ordinal for outcome in outcomes], pa.uint64()),
        "ok": pa.array([isinstance(outcome.result, Response) for outcome in outcomes], pa.bool_()),
        "key": pa.array([outcome.key for outcome in outcomes], KEY),
        "id": pa.array([outcome.row_id for outcome in outcomes], pa.string()),
        "origin": pa.array(["generated"] * size, pa.string()),
        "paid_by": pa.nulls(size, pa.string()),
        "failure": pa.array([_failure(outcome) for outcome in outcomes], FAILURE),
        "output": outputs_of(task, [one.result for one in outcomes]) if outputs is None else outputs,
    }
    sizes = together([arrays["failure"], arrays["output"]], size)
    stored = task.stored_inputs(columns)
    written = []
    for start, stop in portions(sizes.tolist(), MOST_BYTES):
        some = outcomes[start:stop]
        tokens = sum(outcome.result.input_tokens + outcome.result.output_tokens for outcome in some)
        filled = sum(one.result.filled_tokens for one in some if isinstance(one.result, Response))
        cut = {name: _one_array(array.slice(start, stop - start)) for name, array in arrays.items()}
        rows = stored.slice(start, stop - start)
        written.append(write_arrays(folder, stem, rows, cut, tokens, filled))
    return written


def outputs_of(task: RowOutputs, results: Iterable[Response | RowFailure]) -> pa.StructArray:
    """The outputs of rows, null where they have no response."""
    return task.outputs([
        one if isinstance(one, Response) and one is not SKIPPED else None for one in results
    ])


def write_arrays(
    folder: Folder,
    stem: str,
    columns: pa.Table,
    arrays: dict[str, pa.Array],
    tokens: int = 0,
    filled: int = 0,
) -> Part:
    """Write one part.

    :param columns: the input columns.
    :param arrays: all other columns.
    :param tokens: input and output tokens that were paid for, failed rows included.
    :param filled: tokens of the texts that were filled in instead of generated.
    """
    if columns.num_columns:
        arrays["input"] = _as_struct(columns)
    buffer = io.BytesIO()
    table = pa.table(arrays)
    ordinals = arrays["ordinal"].to_numpy(zero_copy_only=False).astype(np.int64)
    sizes = together(table.columns, len(ordinals))
    table = table.replace_schema_metadata({
        _DECODED: json.dumps(cumulated(ordinals, sizes, _STEPS)),
        _TOKENS: str(tokens),
        _FILLED: str(filled),
        **{name: value for name, value in (columns.schema.metadata or {}).items() if name == KINDS},
    })
    runs = []
    with pq.ParquetWriter(buffer, table.schema, compression="zstd", write_page_checksum=True) as writer:
        for start, stop in pairwise(_borders(ordinals)):
            writer.write_table(table.slice(start, stop - start))
            runs.append((int(ordinals[start:stop].min()), int(ordinals[start:stop].max())))
    content = with_footer_checksum(buffer.getvalue())
    rows, ok = len(ordinals), int(arrays["ok"].true_count)
    ranges = "_".join(f"{begin}-{end}" for begin, end in runs)
    path = f"{stem}.{len(content)}.{ranges}.{rows}.{ok}.parquet"
    folder.write(path, content)
    return Part(path, rows, ok, runs[0][0], runs[-1][1], len(content))


def _as_struct(columns: pa.Table) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [one_array(column) for column in columns.columns],
        fields=[field.with_nullable(True).remove_metadata() for field in columns.schema],
    )


def _one_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array


def _borders(ordinals: npt.NDArray[np.int64]) -> list[int]:
    """Where runs begin, and the end: cut at the largest gaps. Unordered rows are one run."""
    gaps = np.diff(ordinals) - 1
    if (gaps < 0).any():
        return [0, len(ordinals)]
    cuts = np.flatnonzero(gaps)
    if len(cuts) >= _MOST_RUNS:
        cuts = cuts[gaps[cuts] >= _SMALL_GAP]
        cuts = np.sort(cuts[np.argsort(-gaps[cuts], kind="stable")[: _MOST_RUNS - 1]])
    return [0, *(cuts + 1).tolist(), len(ordinals)]


def _runs_in(ranges: str) -> tuple[tuple[int, int], ...]:
    runs = (run.split("-") for run in ranges.split("_"))
    return tuple((int(first), int(last)) for first, last in runs)


def read_between(folder: Folder, part: Part, first: int, stop: int) -> pa.Table:
    """The runs of a part that have ordinals from `first` to before `stop`, whole.

    This and all readers of parts raise as :func:`~airflow_provider_raybatch.job.parts.reading.read_part`.
    """
    runs = part.runs
    groups = [place for place, (begin, end) in enumerate(runs) if begin < stop and end >= first]
    if len(groups) == len(runs):
        return read_part(folder, part.path, part.bytes, lambda file: file.read(), "all")
    # Exact ranges: the others may be most of the file.
    return read_part(folder, part.path, part.bytes, lambda file: file.read_row_groups(groups))


def read_columns(folder: Folder, part: Part, columns: Sequence[str]) -> pa.Table:
    """Those of `columns` that the part has, of all its rows."""

    def read(file: pq.ParquetFile) -> pa.Table:
        return file.read([name for name in columns if name in file.schema_arrow.names])

    return read_part(folder, part.path, part.bytes, read, "columns")


def with_failures(parts: Iterable[Part]) -> list[Part]:
    """Those with failed rows, the newest first."""
    return sorted((part for part in parts if part.ok < part.rows), key=lambda part: part.path, reverse=True)


def inputs_of(rows: pa.Table) -> dict[str, pa.Array]:
    """The input columns of rows of parts; none where failed rows could not be read."""
    return members(rows["input"]) if "input" in rows.schema.names else {}


def good_outputs(folder: Folder, parts: Sequence[Part]) -> Iterator[pa.ChunkedArray]:
    """The outputs of the answered rows of each part that has any; a part is read when it is asked for."""
    for part in parts:
        if part.ok:
            table = read_columns(folder, part, ["ok", "output"])
            if len(found := table.filter(table["ok"])["output"].drop_null()):
                yield found


def listed(entries: Sequence[Entry], damaged: bool = False) -> list[Part]:
    """The parts among files of a ledger: the whole ones, or those that are known to be damaged."""
    marked = {entry.path for entry in entries if entry.path.endswith(DAMAGED)}
    found = []
    for entry in entries:
        name = _NAME.search(entry.path)
        if name is not None:
            is_damaged = int(name[1]) != entry.size or entry.path + DAMAGED in marked
            if is_damaged is damaged:
                runs = _runs_in(str(name[2]))
                rows, ok = int(name[3]), int(name[4])
                found.append(Part(entry.path, rows, ok, runs[0][0], runs[-1][1], entry.size))
    return found


def decoded_bytes(metadata: pq.FileMetaData) -> bytes:
    """What the rows of a part take in memory, by its footer: pairs of an ordinal and the bytes up to it.

    :returns: 64-bit integers in a compact form, since the driver has them of all parts.
    """
    return bytes(np.array(json.loads(metadata.metadata[_DECODED]), np.int64))


def tokens_of(metadata: pq.FileMetaData) -> tuple[int, int]:
    """Tokens of a part by its footer: filled in instead of generated, and paid for by its submission."""
    return int(metadata.metadata[_FILLED]), int(metadata.metadata[_TOKENS])


def paid_tokens(folder: Folder, part: Part) -> int:
    """Input and output tokens that the submission of a part paid for."""
    return read_part(folder, part.path, part.bytes, lambda file: tokens_of(file.metadata)[1])


def outcomes(folder: Folder, part: Part) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The ordinals of a part, and which of them are good."""
    if part.is_solid:
        runs = [np.arange(first, last + 1) for first, last in part.runs]
        return np.concatenate(runs).astype(np.uint64), np.ones(part.rows, np.bool_)
    table = read_columns(folder, part, ["ordinal", "ok"])
    return table["ordinal"].to_numpy(), table["ok"].to_numpy()


def keys_in(folder: Folder, part: Part) -> list[bytes]:
    """The keys of the requests of a part."""
    return [key for key in read_columns(folder, part, ["key"])["key"].to_pylist() if key is not None]


def _failure(outcome: RowOutcome) -> dict[str, str] | None:
    if isinstance(outcome.result, Response):
        return None
    found = {"step": outcome.result.step, "reason": outcome.result.reason, "request": outcome.request}
    # A user's function may put half of a surrogate pair there, which Arrow refuses.
    return {name: text.encode("utf-8", "replace").decode() for name, text in found.items()}
