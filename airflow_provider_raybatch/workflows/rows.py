# SPDX-License-Identifier: Apache-2.0
"""Read finished datasets as record batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result
from airflow_provider_raybatch.dataset.derived import DerivedManifest
from airflow_provider_raybatch.dataset.opening import open_files
from airflow_provider_raybatch.dataset.rows import require as require_of_dataset
from airflow_provider_raybatch.workflows.errors import WorkflowError, reading


class Rows:
    """The rows of one or several datasets, one after the other.

    :param results: each as :data:`~airflow_provider_raybatch.dataset.Result`.
    :raises WorkflowError: a result has no manifest, no dataset is given, or the types of a column differ.
    """

    def __init__(self, *results: Result, aws_conn_id: str | None = None) -> None:
        if not results:
            raise WorkflowError("results: none is given; name at least one dataset.")
        with reading():
            self._datasets = [open_files(result, aws_conn_id) for result in results]
            self._schemas = [one.arrow_dataset().schema.remove_metadata() for one in self._datasets]
        try:
            self.schema = pa.unify_schemas(self._schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise WorkflowError(
                f"results: their columns don't fit together ({error}); give the columns one type."
            ) from error

    @property
    def manifests(self) -> list[BatchManifest | DerivedManifest]:
        """Manifests of the datasets, in order."""
        return [one.manifest for one in self._datasets]

    @property
    def count(self) -> int:
        """Number of rows, from the manifests."""
        return sum(one.rows for one in self._datasets)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """At least one batch, which is empty if there are no rows, so that the columns are always known.

        :param columns: only these, in this order; by default all. A column that a dataset lacks is null.
        :raises WorkflowError: the dataset lacks the column.
        """
        names = list(self.schema.names if columns is None else columns)
        for name in names:
            require(self.schema, name)
        schema = pa.schema([self.schema.field(name) for name in names])
        yield pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
        for dataset, its_own in zip(self._datasets, self._schemas, strict=True):
            with reading():
                for batch in dataset.batches([name for name in names if name in its_own.names]):
                    yield _united(batch, schema)

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries: simpler, but slower."""
        for batch in self.batches(columns):
            yield from batch.to_pylist()


def require(schema: pa.Schema, name: str, field: str = "columns") -> None:
    """Check that a column exists.

    :param field: the argument that the error names.
    :raises WorkflowError: it does not exist.
    """
    with reading():
        require_of_dataset(schema.names, [name], field)


def _united(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if batch.schema.equals(schema):
        return batch
    arrays = [
        batch.column(one.name).cast(one.type)
        if one.name in batch.schema.names
        else pa.nulls(batch.num_rows, one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
