# SPDX-License-Identifier: Apache-2.0
"""Whether the source has the columns that the spec names, and all of them can be used and carried along."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any, BinaryIO, cast

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import LIST_OPERATORS, NULL_OPERATORS
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import RowTemplate, placeholder
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest
from airflow_provider_raybatch.job.input.chunk_rows import partitions
from airflow_provider_raybatch.job.input.listing import SourceFile
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.input.table import plain_type
from airflow_provider_raybatch.job.input.text_rows import OTHER_DELIMITERS
from airflow_provider_raybatch.job.output.publish import Target, publish, write_rows
from airflow_provider_raybatch.job.output.rows import Range
from airflow_provider_raybatch.job.output.schema import footers, input_types
from airflow_provider_raybatch.job.parts.part import FAILURE, Part, write_arrays
from airflow_provider_raybatch.job.preflight.check import Check
from airflow_provider_raybatch.job.preflight.image_check import check_image_columns
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.steps.columns import schema_of
from airflow_provider_raybatch.job.tasks.base import Task, Totals
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import Folder

_SHOWN_COLUMNS = 20
_TEXT, _NUMBER, _BOOLEAN, _NULL = "text", "a number", "true or false", "null"


def _of_each_step(check: Callable[[BatchInferenceSpec, Source], None]) -> Check:
    """A check that is made for each step of a job, or for its one question."""

    @wraps(check)
    def look(spec: BatchInferenceSpec, source: Source) -> None:
        for step in spec.questions():
            check(step, source)

    return Check(look)


def named_columns(spec: BatchInferenceSpec) -> dict[str, str]:
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
    wanted = named_columns(spec)
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


def _check_first_step(spec: BatchInferenceSpec, source: Source) -> None:
    """Apart from the others: its rows can be rendered though a later step lacks a column."""
    _check_columns(spec.questions()[0], source)


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


def check_conditions(spec: BatchInferenceSpec, source: Source) -> None:
    """Compare the values of the steps' conditions with the types of their columns.

    Without this check such a step would ask no row, and the dataset would have nulls without a word.

    :raises PreflightError: no row fulfils a condition.
    """
    made: dict[str, pa.DataType] = {}
    for step in spec.questions():
        _check_step(step, source, made)
        schema = schema_of(task_of(step))
        made |= dict(zip(schema.names, schema.types, strict=True))


def _check_step(step: BatchInferenceSpec, source: Source, made: Mapping[str, pa.DataType]) -> None:
    """:param made: types of the columns of earlier steps."""
    for condition in step.question.step.when:
        if condition[1] in NULL_OPERATORS or len(condition) < 3:
            continue
        name, operator, value = condition
        values = value if operator in LIST_OPERATORS else [value]
        types = {made[name]} if name in made else _types_in(source, name)
        kinds = {_kind_of_type(one) for one in types}
        if values and kinds and kinds.isdisjoint({_NULL, *map(_kind_of_value, values)}):
            raise PreflightError(
                f"{step.step_prefix}when: {_why(name, types, kinds)}, so no row fulfils a "
                f"comparison with {shown(value)}; {_remedy(kinds, name in made)}."
            )


def _types_in(source: Source, name: str) -> set[pa.DataType]:
    """The types of a column in all files; none where it is not known what it holds."""
    if name in source.mixed or name not in source.schema.names:
        return set()
    if any(name in folders for folders in partitions(source.listing)):
        return {source.schema.field(name).type}
    found = {schema.field(name).type for schema in source.surveyed.schemas if schema and name in schema.names}
    return found or {source.schema.field(name).type}


def _kind_of_type(given: pa.DataType) -> str | None:
    """What values of a type are; ``None`` for those that no condition compares."""
    kind = plain_type(given)
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_null(kind):
        return _NULL
    if pa.types.is_boolean(kind):
        return _BOOLEAN
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return _NUMBER
    return _TEXT if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None


def _kind_of_value(value: Any) -> str:
    if isinstance(value, bool):
        return _BOOLEAN
    return _TEXT if isinstance(value, str) else _NUMBER


def _why(name: str, types: set[pa.DataType], kinds: set[str | None]) -> str:
    if None in kinds:
        return f"column {name!r} has the type {' or '.join(sorted(map(str, types)))}"
    return f"column {name!r} is {' or '.join(sorted(filter(None, kinds)))}"


def _remedy(kinds: set[str | None], is_answer: bool) -> str:
    if None in kinds:
        return "compare a column of text, numbers or booleans, or ask whether it 'is null'"
    right = f"compare with {' or '.join(sorted(filter(None, kinds)))}"
    return right if is_answer else f"{right}, or write the column with another type"


def check_types(
    spec: BatchInferenceSpec, files: Sequence[SourceFile], schemas: Sequence[pa.Schema | None]
) -> None:
    """Write parts and a dataset with each type of each column, without and with values.

    :param schemas: of each file, in plain types.
    :raises PreflightError: a column can't be written, or not be read from a part.
    """
    types: dict[str, dict[pa.DataType, SourceFile]] = {}
    for file, schema in zip(files, schemas, strict=True):
        for column in schema or ():
            types.setdefault(column.name, {}).setdefault(column.type, file)
    if not types:
        return
    try:
        _write(spec, types)
    except Exception:  # in memory, so it is about the types
        for name, found in types.items():
            _check_column(spec, name, found)
        raise


def _check_column(spec: BatchInferenceSpec, name: str, found: Mapping[pa.DataType, SourceFile]) -> None:
    try:
        _write(spec, {name: found})
    except Exception as error:
        kinds, (*_, file) = " and ".join(map(str, found)), found.values()
        why = " ".join(str(error.__cause__ or error).split())[:200]
        raise PreflightError(
            f"source: column {name!r} of {file.shown} has the Arrow type {kinds}, which can't be carried to "
            f"the dataset ({why}); write the file again with another type, or without the column."
        ) from error


def _write(spec: BatchInferenceSpec, types: Mapping[str, Collection[pa.DataType]]) -> None:
    task, folder, parts = _Inputs(spec), cast(Folder, _Memory()), list[Part]()
    each = {name: list(kinds) for name, kinds in types.items()}
    for number in range(max(map(len, each.values()))):
        for make in (pa.nulls, _values):
            columns = {name: make(2, kinds[number]) for name, kinds in each.items() if number < len(kinds)}
            first, failed = 2 * len(parts), dict.fromkeys(FAILURE.names, "")
            arrays = {
                "ordinal": pa.array([first, first + 1], pa.uint64()),
                "ok": pa.array([True, False]),
                **{name: pa.nulls(2, pa.string()) for name in ("id", "paid_by")},
                "origin": pa.array(["generated"] * 2),
                "failure": pa.array([None, failed], FAILURE),
                "output": pa.nulls(2, task.output_type),
            }
            parts.append(write_arrays(folder, f"parts/{number}-{first}", pa.table(columns), arrays))
    inputs = input_types(footers(folder, parts), pa.schema([]), ())
    target = Target(folder, "data", "dead_letter", spec.destination_format, inputs, task)
    publish(Range(0, 0, 2 * len(parts), tuple(parts)), target)
    write_rows([target.schema.empty_table()], 1, target)


def _values(rows: int, kind: pa.DataType) -> pa.Array:
    """Values without nulls, also inside of others."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _values(rows, kind.storage_type))
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width)] * rows, kind)
    if pa.types.is_struct(kind):
        fields = [_values(rows, field.type) for field in kind]
        return pa.StructArray.from_arrays(fields, fields=list(kind))
    if pa.types.is_fixed_size_list(kind):
        if not kind.list_size:
            raise ValueError("Parquet's readers take no lists of size 0")  # and Arrow divides by it
        values = _values(rows * kind.list_size, kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    if pa.types.is_map(kind):
        keys, items = _values(rows, kind.key_type), _values(rows, kind.item_type)
        return pa.MapArray.from_arrays(list(range(rows + 1)), keys, items, type=kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        return make.from_arrays(list(range(rows + 1)), _values(rows, kind.value_type), type=kind)
    zeros = pa.py_buffer(bytes(32 * (rows + 1)))  # the widest numbers have 32 bytes
    return pa.Array.from_buffers(kind, rows, [None, *[zeros] * (kind.num_buffers - 1)])


class _Inputs(Task):
    """A task whose rows have their input columns alone."""

    @property
    def output_type(self) -> pa.StructType:
        return pa.struct([("x", pa.string())])

    def output(self, response: Response) -> dict[str, Any]:
        return {}

    def totals(self, outputs: pa.StructArray | pa.ChunkedArray) -> Totals:
        return Totals()


class _Memory(dict[str, bytes]):
    """What writers and readers of parts use of a folder, so that no disk can fail."""

    uri = "memory"
    write = dict.__setitem__

    def open(self, path: str, size: int) -> BinaryIO:
        return io.BytesIO(self[path])

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self[path][start : start + length]


FIRST_COLUMNS = Check(_check_first_step)
COLUMN_CHECKS = (
    FIRST_COLUMNS,
    _of_each_step(_check_columns),
    _of_each_step(_check_braces),
    _of_each_step(_check_collisions),
    _of_each_step(check_image_columns),
    Check(check_conditions),
)
"""Whether the spec fits the source."""
