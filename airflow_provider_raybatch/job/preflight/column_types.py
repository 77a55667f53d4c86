# SPDX-License-Identifier: Apache-2.0
"""Checks that each Arrow type of the source can be carried to the dataset, by trying it on nulls."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.listing import SourceFile
from airflow_provider_raybatch.job.input.table import as_parquet


def check_types(files: Sequence[SourceFile], schemas: Sequence[pa.Schema | None]) -> None:
    """Try each type once.

    :param schemas: of each file, in plain types.
    :raises PreflightError: a step can't handle one of them.
    """
    tried: set[pa.DataType] = set()
    for file, schema in zip(files, schemas, strict=True):
        for column in schema or ():
            if column.type in tried:
                continue
            try:
                _try(column.type)
            except (pa.ArrowException, NotImplementedError, TypeError) as error:
                raise PreflightError(
                    f"source: column {column.name!r} of {file.shown} has the Arrow type {column.type}, which "
                    f"can't be carried to the dataset ({' '.join(str(error).split())[:200]}); write the file "
                    "again with another type, or without the column."
                ) from error
            tried.add(column.type)


def _try(kind: pa.DataType) -> None:
    """Do with a column what parts and publishing do."""
    part = pa.StructArray.from_arrays([pa.nulls(2, kind)], fields=[pa.field("x", kind)])
    rows = pa.concat_tables([_through_parquet(pa.table({"input": part}))] * 2)
    rows = rows.take(pa.array([3, 0]))
    column = pc.struct_field(rows["input"], 0).combine_chunks()
    pa.concat_arrays([column, pa.nulls(1, column.type)])
    _through_parquet(pa.table({"x": column}))


def _through_parquet(table: pa.Table) -> pa.Table:
    return pq.read_table(io.BytesIO(as_parquet(table)))
