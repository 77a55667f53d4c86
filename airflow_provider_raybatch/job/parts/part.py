# SPDX-License-Identifier: Apache-2.0
"""Parts: what a submission has finished, as files that are whole or not there. They are the only ledger.

A part holds rows of one chunk with both their identities (the ordinal, which is their position in the frozen
input, or the user's id beside it; and the request key), their input columns, and either the output or the
failure. Input and output are struct columns, so that no name of the user's can collide with ours.

A part's name says which ordinals are in it and how many of them are good, so that most parts never need to be
opened again: what ten million finished rows come to is read off one listing. It says its size, too, so that a
listing shows a part that was cut off. Rows that took much longer than
those that were asked with them lie far from the rest of their part. So the name has a few runs of ordinals.
Each run is a row group of the file: who needs rows of one run reads only that.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.layout import DAMAGED
from airflow_provider_raybatch.job.input.table import KINDS, one_array
from airflow_provider_raybatch.job.parts.reading import read_part
from airflow_provider_raybatch.job.parts.sizes import MOST_BYTES, cumulated, portions, together
from airflow_provider_raybatch.job.request.key_array import KEY
from airflow_provider_raybatch.job.row import Response, RowFailure, RowOutcome
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.storage.checksum import with_footer_checksum
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import Folder

Origin = Literal["generated", "carried", "stored", "duplicate"]
"""How a row came by its response: paid for by the part's own submission, or found in an earlier part of the
task, in the response store, or with an equal request of the same input."""

_DECODED = b"raybatch.decoded"
_TOKENS = b"raybatch.tokens"
_FILLED = b"raybatch.filled"
_STEPS = 16
_FOUND = ("carried-", "stored-", "duplicate-")
_NAME = re.compile(r"\.(\d+)\.(\d+-\d+(?:_\d+-\d+)*)\.(\d+)\.(\d+)\.parquet$")
_MOST_RUNS = 6
"""With ordinals of ten digits, a name stays below the 255 bytes that file systems take."""
_SMALL_GAP = 256
"""Ordinals between two runs that are only told apart where there are few runs anyway."""
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
        """First and last ordinal of each run, ascending; all rows lie in one, but it may have gaps."""
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
        return not self.path.rpartition("/")[2].startswith(_FOUND)

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


def write_all(
    folder: Folder,
    stem: str,
    columns: pa.Table,
    outcomes: Sequence[RowOutcome],
    task: Task,
    most: int = MOST_BYTES,
) -> list[Part]:
    """Write rows of a chunk, in as many parts as their outcomes need.

    :param stem: the path, relative to `folder`, to which ordinals and counts are added.
    :param columns: the input columns of exactly these rows.
    :param task: what the rows yield.
    :param most: bytes of outcomes in one part, unless it has one row.
    :raises StorageError: they can't be written.
    """
    size = len(outcomes)
    outputs = [None if isinstance(one.result, RowFailure) else task.output(one.result) for one in outcomes]
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {
        "ordinal": pa.array([outcome.ordinal for outcome in outcomes], pa.uint64()),
        "ok": pa.array([isinstance(outcome.result, Response) for outcome in outcomes], pa.bool_()),
        "key": pa.array([outcome.key for outcome in outcomes], KEY),
        "id": pa.array([outcome.row_id for outcome in outcomes], pa.string()),
        "origin": pa.array(["generated"] * size, pa.string()),
        "paid_by": pa.nulls(size, pa.string()),
        "failure": pa.array([_failure(outcome) for outcome in outcomes], FAILURE),
        "output": pa.array(outputs, task.output_type),
    }
    sizes = together([arrays["failure"], arrays["output"]], size)
    written = []
    for start, stop in portions(sizes.tolist(), most):
        some = outcomes[start:stop]
        tokens = sum(outcome.result.input_tokens + outcome.result.output_tokens for outcome in some)
        filled = sum(one.result.filled_tokens for one in some if isinstance(one.result, Response))
        cut = {name: _one_array(array.slice(start, stop - start)) for name, array in arrays.items()}
        rows = columns.slice(start, stop - start)
        written.append(write_arrays(folder, stem, rows, cut, tokens, filled))
    return written


def write(folder: Folder, stem: str, columns: pa.Table, outcomes: Sequence[RowOutcome], task: Task) -> Part:
    """As :func:`write_all`, of rows that fit one part."""
    (part,) = write_all(folder, stem, columns, outcomes, task)
    return part


def write_arrays(
    folder: Folder,
    stem: str,
    columns: pa.Table,
    arrays: dict[str, pa.Array],
    tokens: int = 0,
    filled: int = 0,
) -> Part:
    """As :func:`write`, of rows whose outcome is Arrow already.

    :param arrays: every column of a part but `input`.
    :param tokens: input and output tokens that were paid for, failed rows included.
    :param filled: tokens of the texts that were filled in instead of generated.
    """
    if columns.num_columns:
        arrays["input"] = pa.StructArray.from_arrays(
            [one_array(column) for column in columns.columns],
            fields=[field.with_nullable(True).remove_metadata() for field in columns.schema],
        )
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
    borders = _borders(ordinals)
    with pq.ParquetWriter(buffer, table.schema, compression="zstd", write_page_checksum=True) as writer:
        for start, stop in pairwise(borders):
            writer.write_table(table.slice(start, stop - start))
    content = with_footer_checksum(buffer.getvalue())
    pieces = [ordinals[start:stop] for start, stop in pairwise(borders)]
    runs = [(int(piece.min()), int(piece.max())) for piece in pieces]
    rows, ok = len(ordinals), int(arrays["ok"].true_count)
    told = "_".join(f"{begin}-{end}" for begin, end in runs)
    path = f"{stem}.{len(content)}.{told}.{rows}.{ok}.parquet"
    folder.write(path, content)
    return Part(path, rows, ok, runs[0][0], runs[-1][1], len(content))


def _one_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Arrow makes chunks of values that one array can't hold."""
    return one_array(array) if isinstance(array, pa.ChunkedArray) else array


def _borders(ordinals: npt.NDArray[np.int64]) -> list[int]:
    """Where runs begin, and the end: cut at the largest gaps. Rows that are not in order are one run."""
    gaps = np.diff(ordinals) - 1
    if (gaps < 0).any():
        return [0, len(ordinals)]
    cuts = np.flatnonzero(gaps)
    if len(cuts) >= _MOST_RUNS:
        cuts = cuts[gaps[cuts] >= _SMALL_GAP]
        cuts = np.sort(cuts[np.argsort(-gaps[cuts], kind="stable")[: _MOST_RUNS - 1]])
    return [0, *(cuts + 1).tolist(), len(ordinals)]


def _runs_in(told: str) -> tuple[tuple[int, int], ...]:
    runs = (run.split("-") for run in told.split("_"))
    return tuple((int(first), int(last)) for first, last in runs)


def read_between(folder: Folder, part: Part, first: int, stop: int) -> pa.Table:
    """The runs of a part that have ordinals from `first` to before `stop`, whole.

    :raises DamagedPartError: it is damaged.
    :raises StorageError: it can't be read.
    """
    runs = part.runs
    groups = [place for place, (begin, end) in enumerate(runs) if begin < stop and end >= first]
    if len(groups) == len(runs):
        return read_part(folder, part.path, part.bytes, lambda file: file.read(), "all")
    # Exact ranges: the others may be most of the file.
    return read_part(folder, part.path, part.bytes, lambda file: file.read_row_groups(groups))


def read_columns(folder: Folder, part: Part, columns: Sequence[str]) -> pa.Table:
    """Those of `columns` that the part has, of all its rows.

    :raises DamagedPartError: it is damaged.
    :raises StorageError: it can't be read.
    """

    def read(file: pq.ParquetFile) -> pa.Table:
        return file.read([name for name in columns if name in file.schema_arrow.names])

    return read_part(folder, part.path, part.bytes, read, "columns")


def listed(entries: Sequence[Entry], damaged: bool = False) -> list[Part]:
    """The parts among files of a ledger.

    :param damaged: whether to return those that are damaged, as far as that is known, and no others.
    """
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

    The size of its file tells little of it where rows repeat themselves.

    :returns: 64-bit integers; the driver has them of all parts.
    """
    return bytes(np.array(json.loads(metadata.metadata[_DECODED]), np.int64))


def filled_tokens(metadata: pq.FileMetaData) -> int:
    """Tokens of a part's texts that were filled in instead of generated, by its footer."""
    return int((metadata.metadata or {}).get(_FILLED, 0))


def noted_tokens(metadata: pq.FileMetaData) -> int:
    """Input and output tokens that the submission of a part paid for, by its footer."""
    return int((metadata.metadata or {}).get(_TOKENS, 0))


def paid_tokens(folder: Folder, part: Part) -> int:
    """As :func:`noted_tokens`.

    :raises DamagedPartError: it is damaged.
    :raises StorageError: it can't be read.
    """
    return read_part(folder, part.path, part.bytes, lambda file: noted_tokens(file.metadata))


def outcomes(folder: Folder, part: Part) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """The ordinals of a part, and which of them are good.

    :raises DamagedPartError: it is damaged.
    :raises StorageError: it can't be read.
    """
    if part.is_solid:
        runs = [np.arange(first, last + 1) for first, last in part.runs]
        return np.concatenate(runs).astype(np.uint64), np.ones(part.rows, np.bool_)
    table = read_columns(folder, part, ["ordinal", "ok"])
    return table["ordinal"].to_numpy(), table["ok"].to_numpy()


def _failure(outcome: RowOutcome) -> dict[str, str] | None:
    if isinstance(outcome.result, Response):
        return None
    found = {"step": outcome.result.step, "reason": outcome.result.reason, "request": outcome.request}
    # Half of a surrogate pair, which a user's function may put there, is not text that Arrow takes.
    return {name: text.encode("utf-8", "replace").decode() for name, text in found.items()}
