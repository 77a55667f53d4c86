# SPDX-License-Identifier: Apache-2.0
"""Checks the input before an engine starts: source, columns, and the requests of the first rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from pydantic import SecretStr

from airflow_provider_raybatch.contract.arguments.openai_batch import LINE_COLUMNS, OPENAI_BATCH
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import RowTemplate, placeholder
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, nearest
from airflow_provider_raybatch.job.failures.public_reasons import counted, public_reason, refusal_by
from airflow_provider_raybatch.job.input.chunk_rows import BadRow, Partition, partitions
from airflow_provider_raybatch.job.input.hugging_face import split_note
from airflow_provider_raybatch.job.input.json_types import NULL, TEXT, Kind, arrow_type, join
from airflow_provider_raybatch.job.input.listing import Listing, SourceFile, resolve
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.input.survey import ROWS_PER_CHUNK, Source, Surveyed, cut, survey
from airflow_provider_raybatch.job.input.table import kinds_of
from airflow_provider_raybatch.job.input.text_rows import OTHER_DELIMITERS
from airflow_provider_raybatch.job.media.allowed import ImageAccess, image_access
from airflow_provider_raybatch.job.media.values import may_hold_images
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.preflight.column_types import check_types
from airflow_provider_raybatch.job.preflight.condition_check import check_conditions
from airflow_provider_raybatch.job.request.render import needed_columns, render_all
from airflow_provider_raybatch.job.request.row_text import is_blank
from airflow_provider_raybatch.job.row import NOT_ASKED, ImageError, Request, RowFailure
from airflow_provider_raybatch.job.tasks import postprocess
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.file import in_order

_SAMPLE_ROWS = 1000
_SAMPLE_CHUNK = 128
_SHOWN_COLUMNS = 20
_SHOWN_FILES = 3


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


def look_at_source(
    spec: BatchInferenceSpec,
    credentials: AwsCredentials | None,
    token: SecretStr | None = None,
    emit: Callable[[Notice], None] | None = None,
) -> Source:
    """Find, open and count the source.

    :param token: for the Hugging Face hub.
    :param emit: gets :func:`source_notes`.
    :raises PreflightError: it is missing, or not what the spec describes.
    """
    source = read_source(spec, credentials, token)
    if emit is not None:
        for sentence in source_notes(source):
            emit(Notice(message=sentence))
    for step in spec.step_specs():
        for check in SOURCE_CHECKS:
            check(step, source)
    check_conditions(spec, source)
    return source


def read_source(
    spec: BatchInferenceSpec,
    credentials: AwsCredentials | None,
    token: SecretStr | None = None,
) -> Source:
    """As :func:`look_at_source`, without :data:`SOURCE_CHECKS`."""
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


def check_rows(
    spec: BatchInferenceSpec,
    take: Callable[[], SampledRows],
    tolerance: Tolerance,
    emit: Callable[[Notice], None],
) -> SampledRows:
    """Check the first rows.

    :param take: calls :func:`sample`.
    :raises PreflightError: the function can't be imported, or none of the rows renders.
    :raises RaybatchError: more rows fail than `tolerance` allows for the whole input.
    """
    for field, template in spec.row_templates():
        for lookalike in RowTemplate(template).lookalikes:
            text = f"{field}: {lookalike!r} is taken as text"
            remedy = "only {row.name} and {row['any name']} are placeholders."
            emit(Notice(level="warning", message=f"{text}; {remedy}"))
    sampled = take()
    failures, rows = sampled.failures, count_of(sampled.rows, "row")
    if failures and not sampled.requests and not spec.answers_lines:
        _, first = failures[0]
        field = "images" if first.step == "media" else "prompt"
        none = f"{field}: none of the first {rows} makes a request; the first fails in step {first.step!r}"
        raise refusal_by(none, first)
    if failures:
        tolerance.before(failures, sampled.rows)
        become = "error lines" if spec.answers_lines else "dead letters"
        why = counted(failures, shows_rows=spec.shows_rows)
        text = f"{len(failures):,} of the first {rows} will be {become}: {why}."
        emit(Notice(level="warning", message=text))
    if blank := sum(map(is_blank, sampled.requests)):
        text = (
            f"prompt: {blank:,} of the first {rows} have only blank text for it and are asked all the same; "
            "set on_blank to 'null' if they need no answer."
        )
        emit(Notice(level="warning", message=text))
    return sampled


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
    missing = {name for step in spec.step_specs() for name in _named_columns(step)} - {*source.columns}
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


def _named_columns(spec: BatchInferenceSpec) -> dict[str, str]:
    """Columns of the source that a step needs, each with the argument that names it."""
    wanted = dict(spec.column_arguments())
    for argument in ("sampling_column", "adapter_column", "id_column"):
        if (column := getattr(spec, argument)) is not None:
            wanted.setdefault(column, argument)
    wanted = {
        column: argument if argument == "id_column" else spec.step_prefix + argument
        for column, argument in wanted.items()
    }
    for column in spec.condition_columns:
        wanted.setdefault(column, f"{spec.step_prefix}when")
    for column in spec.question.earlier_columns:
        wanted.pop(column, None)
    return wanted


def _check_columns(spec: BatchInferenceSpec, source: Source) -> None:
    if not source.rows and not source.columns:
        return
    wanted = _named_columns(spec)
    # A CSV file that lacks a header has its first row taken for one.
    files = source.listing.files if source.listing.format == "csv" else ()
    with_header = next((file for file in files if file.csv.header is True), None)
    earlier = spec.question.earlier_columns
    where = "the source with the columns of earlier steps" if earlier else "the source"
    for name, field in wanted.items():
        if name not in source.columns:
            raise _missing(field, name, [*earlier, *source.columns], where, with_header)
    folders = partitions(source.listing)
    for file, schema, named in zip(source.listing.files, source.surveyed.schemas, folders, strict=True):
        for name, field in wanted.items():
            if schema and name not in schema.names and name not in named:
                raise _missing(field, name, [*schema.names, *named], file.uri, with_header)


def _missing(field: str, name: str, columns: list[str], where: str, csv: SourceFile | None) -> PreflightError:
    """The error of a column that is not there.

    :param csv: a file whose first row, which may be one of values, names the columns.
    """
    near = nearest(name, columns)
    meant = f"; did you mean {near!r}" if near else ""
    for other in OTHER_DELIMITERS:
        if csv is not None and any(name in column.split(other) for column in columns):
            meant = f"; set {csv.options_with(delimiter=other)} if that separates them"
    shown, others = columns[:_SHOWN_COLUMNS], len(columns) - _SHOWN_COLUMNS
    more = f" and {others:,} more" if others > 0 else ""
    return PreflightError(
        f"{field}: {where} has no column {name!r}{meant} (its columns: {', '.join(shown) or 'none'}{more}).",
        public=f"{field}: {where} has no column {name!r}; if a file has no header, set csv_options."
        if csv is not None
        else None,
    )


def _check_braces(spec: BatchInferenceSpec, source: Source) -> None:
    """Refuse ``{name}`` if `name` is a column: it is text, and each row would make the same request."""
    earlier = spec.question.earlier_columns
    known = [*earlier, *reversed(source.columns)]
    columns = {name.casefold(): name for name in known if not name.isdigit()}
    for field, text in spec.row_templates():
        for braced, name in RowTemplate(text).braced.items():
            if (column := columns.get(name.casefold())) is not None:
                plain = f"{{{braced.strip('{} ')}}}"
                raise PreflightError(
                    f"{field}: {braced!r} is taken as text, but {column!r} is a column; write "
                    f"{placeholder(column)} for its value, or {{'{plain}'}} for the text {plain}."
                )


def _check_collisions(spec: BatchInferenceSpec, source: Source) -> None:
    chosen, names = spec.response_column, task_of(spec).column_names
    if chosen is not None and [name.lower() for name in names].count(chosen.lower()) > 1:
        raise PreflightError(
            f"response_column: {chosen!r} is also the name of another output column (they are "
            f"{', '.join(names)}); choose another name."
        )
    outputs = {name.lower() for name in names}
    double = next((name for name in source.columns if name.lower() in outputs), None)
    if double is not None:
        case = "" if double in names else ", since many warehouses ignore case"
        field, remedy = "output_prefix", "set output_prefix, for example to 'llm_'"
        if spec.step_name:
            field, remedy = f"steps: {spec.step_name}", "rename the step"
        if chosen is not None and double.lower() == chosen.lower():
            field, remedy = "response_column", "choose another name for the response"
        raise PreflightError(
            f"{field}: the source has a column {double!r} already, which is also an output column{case}; "
            f"{remedy}."
        )


def _check_images(spec: BatchInferenceSpec, source: Source) -> None:
    for name in spec.images:
        kind = source.schema.field(name).type if name in source.schema.names else pa.null()
        if not may_hold_images(kind):
            text = (
                f"images: column {name!r} has the type {kind}, and images are bytes, structs with 'bytes' or "
                "'path', references as text, or lists of these; name the column that holds them."
            )
            raise PreflightError(spec.step_prefix + text)


SOURCE_CHECKS = (_check_columns, _check_braces, _check_collisions, _check_images)
"""Whether the spec fits the source; each raises :class:`PreflightError`."""
