# SPDX-License-Identifier: Apache-2.0
"""Checks that the columns of the source can be carried to the dataset, by writing a small one with them."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any, BinaryIO, cast

import pyarrow as pa

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.input.listing import SourceFile
from airflow_provider_raybatch.job.output.publish import Target, publish, write_rows
from airflow_provider_raybatch.job.output.rows import Range
from airflow_provider_raybatch.job.output.schema import footers, input_types
from airflow_provider_raybatch.job.parts.part import FAILURE, Part, write_arrays
from airflow_provider_raybatch.job.row import Response
from airflow_provider_raybatch.job.tasks.base import Task, Totals
from airflow_provider_raybatch.storage.folder import Folder


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
