# SPDX-License-Identifier: Apache-2.0
"""Reads the source before an engine starts: files and columns, the ids of all rows, the first requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import SecretStr

from airflow_provider_raybatch.contract.arguments.openai_batch import LINE_COLUMNS, OPENAI_BATCH
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.failures.public_reasons import counted, public_reason, refusal_by
from airflow_provider_raybatch.job.input.chunk_rows import BadRow, Partition, partitions
from airflow_provider_raybatch.job.input.json_types import NULL, TEXT, Kind, arrow_type, join
from airflow_provider_raybatch.job.input.layouts import split_note
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Chunk, Source, Surveyed, cut, survey
from airflow_provider_raybatch.job.input.table import as_text, kinds_of
from airflow_provider_raybatch.job.media.allowed import ImageAccess, image_access
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.preflight.column_check import check_types, named_columns
from airflow_provider_raybatch.job.request.render import needed_columns, render_all
from airflow_provider_raybatch.job.request.row_text import is_blank
from airflow_provider_raybatch.job.row import NOT_ASKED, ImageError, Request, RowFailure
from airflow_provider_raybatch.job.tasks import postprocess
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.file import in_order

_SAMPLE_ROWS = 1000
_SAMPLE_CHUNK = 128
_SHOWN_FILES = 3
_THREADS = 8


class SampledRows(NamedTuple):
    """Requests of the first rows, failures by ordinal, the number of rows, and those that are not asked."""

    requests: list[Request]
    failures: list[tuple[int, RowFailure]]
    rows: int
    skipped: Collection[int] = ()

    def ordinals(self) -> list[int]:
        """Of the requests."""
        others = {*(ordinal for ordinal, _ in self.failures), *self.skipped}
        return [ordinal for ordinal in range(self.rows) if ordinal not in others]

    def of_all_steps(self, spec: BatchInferenceSpec) -> SampledRows:
        """With requests as engines get them; for later steps, whose rows are not known, one each."""
        first, *later = spec.questions()
        if not first.step_name or not self.requests:
            return self
        unknown = replace(self.requests[0], sampling={})
        requests = [one.of_step(first.step_name, first.sampling) for one in self.requests]
        requests += [unknown.of_step(step.step_name, step.sampling) for step in later]
        return self._replace(requests=requests)


def read_source(
    spec: BatchInferenceSpec, credentials: AwsCredentials | None, token: SecretStr | None = None
) -> Source:
    """Find, open and count the source.

    :param token: for the Hugging Face hub.
    :raises PreflightError: it is missing, or not what the spec describes.
    """
    listing = resolve(spec, credentials, token)
    surveyed = survey(listing, credentials)
    files = zip(listing.files, surveyed.contents, strict=True)
    listing = replace(listing, files=tuple(replace(file, content=content) for file, content in files))
    rows = surveyed.rows if spec.limit is None else min(spec.limit, surveyed.rows)
    of_files, mixed = _schema(spec, listing, surveyed, credentials)
    schema = _with_partitions(of_files, partitions(listing))
    source = Source(listing, surveyed, list(schema.names), schema, rows, mixed)
    return _with_late_columns(spec, source, credentials)


def source_notes(source: Source) -> list[str]:
    """What the log says of a source: commits of the hub, files that are left out, splits that are joined."""
    listing, surveyed = source.listing, source.surveyed
    rows = [int(surveyed.sizes[first:end].sum()) for first, end in pairwise(surveyed.bounds)]
    told = [*listing.commits, split_note([file.shown for file in listing.files], rows)]
    if out := listing.left_out:
        others = f" and {len(out) - _SHOWN_FILES:,} more" if len(out) > _SHOWN_FILES else ""
        told.append(
            f"{count_of(len(out), 'file beside the data is', 'files beside the data are')} left out "
            f"({', '.join(out[:_SHOWN_FILES])}{others}); name a file to read it"
        )
    return [f"source: {sentence}." for sentence in told if sentence]


def tolerance_of(spec: BatchInferenceSpec, source: Source) -> Tolerance:
    """How many rows of the source may fail."""
    return Tolerance(spec, source.rows, all_may_fail=spec.answers_lines)


def check_rows(
    spec: BatchInferenceSpec, sampled: SampledRows, tolerance: Tolerance, emit: Callable[[Notice], None]
) -> None:
    """Check the requests of the first rows, and say what spoils some of them.

    :raises PreflightError: none of the rows renders.
    :raises RaybatchError: more rows fail than `tolerance` allows for the whole input.
    """
    for field, template in spec.row_templates():
        for lookalike in RowTemplate(template).lookalikes:
            text = f"{field}: {lookalike!r} is taken as text"
            remedy = "only {row.name} and {row['any name']} are placeholders."
            emit(Notice(level="warning", message=f"{text}; {remedy}"))
    failures, rows = sampled.failures, count_of(sampled.rows, "row")
    if failures and not sampled.requests and not spec.answers_lines:
        _, first = failures[0]
        field = "images" if first.step == "media" else "prompt"
        none = f"{field}: none of the first {rows} makes a request; the first fails in step {first.step!r}"
        raise refusal_by(none, first)
    tolerance.before(failures, sampled.rows)
    warnings = []
    if failures:
        become = "error lines" if spec.answers_lines else "dead letters"
        why = counted(failures, shows_rows=spec.shows_rows)
        warnings.append(f"{len(failures):,} of the first {rows} will be {become}: {why}.")
    if blank := sum(map(is_blank, sampled.requests)):
        warnings.append(
            f"prompt: {blank:,} of the first {rows} have only blank text for it and are asked all the same; "
            "set on_blank to 'null' if they need no answer."
        )
    for text in warnings:
        emit(Notice(level="warning", message=text))


def sample(spec: BatchInferenceSpec, source: Source, credentials: AwsCredentials | None) -> SampledRows:
    """Render the first rows, and import the postprocess function. No image is read.

    :raises PreflightError: a function can't be imported.
    """
    if spec.postprocess is not None:
        postprocess.load(spec.postprocess)
    render = task_of(spec).renderer()
    reader = Reader(source.listing, needed_columns(spec), credentials, texts=spec.text_columns())
    access = image_access(spec, source.listing, credentials)
    requests: list[Request] = []
    failures: list[tuple[int, RowFailure]] = []
    skipped: list[int] = []
    for chunk in cut(source.surveyed, _SAMPLE_CHUNK, min(_SAMPLE_ROWS, source.rows)):
        rows = reader.read(chunk).rows
        rendered = (_allowed(one, access) for one in render_all(render, rows))
        for ordinal, (row, made) in enumerate(zip(rows, rendered, strict=True), chunk.ordinal):
            if made is NOT_ASKED or spec.leaves_out(row):
                skipped.append(ordinal)
            elif isinstance(made, RowFailure):
                failures.append((ordinal, made))
            else:
                requests.append(made)
    return SampledRows(requests, failures, len(requests) + len(failures) + len(skipped), skipped)


def _allowed(made: Request | RowFailure, access: ImageAccess) -> Request | RowFailure:
    """The request, or the failure of one that refers to an image which may not be read."""
    if isinstance(made, Request):
        try:
            for image in made.images:
                if image.uri:
                    access.located(image.uri)
        except ImageError as error:
            return RowFailure.of("media", error)
    return made


def _schema(
    spec: BatchInferenceSpec, listing: Listing, surveyed: Surveyed, credentials: AwsCredentials | None
) -> tuple[pa.Schema, frozenset[str]]:
    """The columns of the files, and those of JSONL whose values are of several types."""
    if listing.format == OPENAI_BATCH:
        return pa.schema([(name, pa.string()) for name in LINE_COLUMNS]), frozenset()
    if listing.format != "jsonl":
        check_types(spec, listing.files, surveyed.schemas)
        columns: dict[str, pa.Field] = {}
        for schema in surveyed.schemas:
            for column in schema or ():
                columns.setdefault(column.name, column.remove_metadata())
        return pa.schema(list(columns.values())), frozenset()
    reader = Reader(listing, None, credentials)
    read = [reader.read(chunk) for chunk in cut(surveyed, _SAMPLE_CHUNK, _SAMPLE_ROWS)]
    bad = [row for rows in read for row in rows.rows if isinstance(row, BadRow)]
    if bad and len(bad) == sum(len(rows) for rows in read):
        none = f"source: none of the first {count_of(len(bad), 'line')} of {listing.files[0].shown} is a row"
        public = public_reason(RowFailure("read", bad[0].reason))
        why, public = (f"{none}: {one}; JSONL has one JSON object a line." for one in (bad[0].reason, public))
        raise PreflightError(why, public=public)
    kinds: dict[str, Kind] = {}
    for rows in read:
        for name, kind in kinds_of(rows.columns().schema).items():
            kinds[name] = join(kinds.get(name, NULL), kind)
    # JSONL rows bring their own columns, and the dataset holds every column for every row.
    if len(kinds) > postprocess.MOST_COLUMNS:
        raise PreflightError(
            f"source: the first {_SAMPLE_ROWS} rows of {listing.files[0].shown} have {len(kinds)} different "
            f"keys, and a dataset may have {postprocess.MOST_COLUMNS} columns; put what differs from row to "
            "row into one object."
        )
    mixed = frozenset(name for name, kind in kinds.items() if kind == TEXT)
    return pa.schema([(name, arrow_type(kind)) for name, kind in kinds.items()]), mixed


def _with_late_columns(
    spec: BatchInferenceSpec, source: Source, credentials: AwsCredentials | None
) -> Source:
    """Add columns of JSONL that arguments name and only later rows have; their type is not known yet."""
    missing = {name for step in spec.questions() for name in named_columns(step)} - {*source.columns}
    if source.listing.format != "jsonl" or source.rows <= _SAMPLE_ROWS or not missing:
        return source
    reader, late = Reader(source.listing, None, credentials), set[str]()
    for found in in_order(partial(reader.columns_in, names=missing), source.chunks(ROWS_PER_CHUNK)):
        late |= found
        if late == missing:
            break
    schema = pa.schema([*source.schema, *((name, pa.null()) for name in sorted(late))])
    return replace(source, columns=list(schema.names), schema=schema)


def _with_partitions(schema: pa.Schema, folders: Sequence[Partition]) -> pa.Schema:
    """Add the partition columns. As in Spark, a column of the files with such a name gets their type."""
    types = dict(zip(schema.names, schema.types, strict=True))
    types.update({name: value.type for named in folders for name, value in named.items()})
    return pa.schema(list(types.items()))


def check_ids(
    source: Source, column: str, credentials: AwsCredentials | None, are_lines: bool = False
) -> None:
    """Read the ids of all rows, keep 8 bytes of hash each, and read those with equal hashes again.

    :param are_lines: whether the rows are lines of an OpenAI batch file; without an id, one gets an error.
    :raises PreflightError: a row has no id, or two rows have the same.
    :raises StorageError: the source can't be read.
    """
    chunks = source.chunks(ROWS_PER_CHUNK)
    runs = [list(run) for _, run in groupby(chunks, key=_decoded_together)]

    def hashes(run: Sequence[Chunk]) -> npt.NDArray[np.int64]:
        # One reader per row group, so that the group is decoded once.
        reader = Reader(source.listing, [column], credentials, whole=False)
        found = ((chunk, _ids(reader, chunk, column)) for chunk in run)
        if not are_lines:
            found = ((chunk, _needed(ids, chunk, column)) for chunk, ids in found)
        return np.concatenate([np.array([hash(one) for one in ids if one], np.int64) for _, ids in found])

    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(hashes, runs))
    together = np.sort(np.concatenate([*found, np.empty(0, np.int64)]))
    candidates = set(together[1:][together[1:] == together[:-1]].tolist())
    if candidates:
        reader = Reader(source.listing, [column], credentials, whole=False)
        _refuse_duplicates(candidates, chunks, reader, column, are_lines)


def _decoded_together(chunk: Chunk) -> tuple[int, int]:
    """The same for all chunks of a row group; a chunk of text is read alone."""
    return chunk.file, chunk.group if chunk.group >= 0 else -1 - chunk.ordinal


def _ids(reader: Reader, chunk: Chunk, column: str) -> list[str | None]:
    # A line that is not a row needs no id: it becomes a dead letter.
    # CSV has no null, so an empty text counts as a missing id.
    return [
        as_text(row.get(column)) or None if isinstance(row, dict) else "" for row in reader.read(chunk).rows
    ]


def _needed(ids: list[str | None], chunk: Chunk, column: str) -> list[str | None]:
    if None in ids:
        raise PreflightError(
            f"id_column: row {chunk.ordinal + ids.index(None)} has no value in column {column!r}; every row "
            "needs an id, or leave id_column out."
        )
    return ids


def _refuse_duplicates(
    candidates: set[int], chunks: Sequence[Chunk], reader: Reader, column: str, are_lines: bool
) -> None:
    seen: dict[str, int] = {}
    for chunk in chunks:
        for position, one in enumerate(_ids(reader, chunk, column)):
            if not one or hash(one) not in candidates:
                continue
            if one in seen and are_lines:
                lines = f"source: lines {seen[one] + 1} and {chunk.ordinal + position + 1}"
                then = "answers are found by it, so each may be there once."
                raise PreflightError(
                    f"{lines} both have the {column} {one!r}; {then}",
                    public=f"{lines} have the same {column}; {then}",
                )
            if one in seen:
                rows = f"id_column: rows {seen[one]} and {chunk.ordinal + position}"
                then = f"in column {column!r}; ids name rows, so each may be there once."
                raise PreflightError(
                    f"{rows} both have {one!r} {then}", public=f"{rows} have the same value {then}"
                )
            seen[one] = chunk.ordinal + position
