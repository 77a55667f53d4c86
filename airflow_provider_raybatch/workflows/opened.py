# SPDX-License-Identifier: Apache-2.0
"""Open one finished dataset, of a batch inference or of a `DatasetWriter`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_raybatch.contract.base import parse_file, shown
from airflow_provider_raybatch.contract.layout import HIVE_NULL
from airflow_provider_raybatch.contract.manifest import BatchManifest, ManifestFile, parse_manifest
from airflow_provider_raybatch.dataset import Dataset, Result, as_opened, manifest_uri_of, s3_credentials
from airflow_provider_raybatch.storage.checksum import checked_footer
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.manifest import DerivedManifest
from airflow_provider_raybatch.workflows.places import place

_BATCH_ROWS = 4096
_BATCH_BYTES = 16 * 1024 * 1024


class Opened:
    """A dataset that can be read in batches of bounded size.

    :raises WorkflowError: a file can't be read.
    """

    def __init__(self, manifest: BatchManifest | DerivedManifest, folder: Folder) -> None:
        self.manifest = manifest
        self._folder = folder
        self.schema = self._schema()

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """These columns, which the dataset has, in this order."""
        if self.manifest.format != "parquet":
            yield from self._json_dataset().to_batches(columns=columns, batch_size=_BATCH_ROWS)
            return
        for file in self.manifest.files:
            yield from self._file_batches(file, columns)

    def _file_batches(self, file: ManifestFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with self._folder.open(file.path, file.bytes) as stream:
            parquet = self._parquet(stream, file)
            fixed = self._partition_values(file.path)
            in_file = [name for name in columns if name not in fixed]
            for batch in self._batches(parquet, file, in_file):
                for name, text in fixed.items():
                    value = pa.scalar(text, pa.string()).cast(self.schema.field(name).type)
                    batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
                yield batch.select(columns)

    def _batches(self, parquet: pq.ParquetFile, file: ManifestFile, columns: list[str]) -> Iterator[Any]:
        try:
            yield from parquet.iter_batches(_batch_rows(parquet), columns=columns, use_threads=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._damaged(file, error) from error

    def _partition_values(self, path: str) -> dict[str, str | None]:
        if isinstance(self.manifest, BatchManifest):
            return {}
        pairs = [segment.partition("=") for segment in path.split("/")[:-1]]
        values = {unquote(name): None if value == HIVE_NULL else unquote(value) for name, _, value in pairs}
        # The single file of an empty dataset has no partition in its path.
        return {**dict.fromkeys(self.manifest.partitioned_by), **values}

    def _parquet(self, stream: Any, file: ManifestFile) -> pq.ParquetFile:
        try:
            return checked_parquet(stream)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._damaged(file, error) from error

    def _damaged(self, file: ManifestFile, error: Exception) -> WorkflowError:
        return WorkflowError(
            f"files: {file.path!r} of {self.manifest.uri} can't be read ({error}); make the dataset again."
        )

    def _schema(self) -> pa.Schema:
        if self.manifest.format != "parquet":
            return self._json_dataset().schema
        if not self.manifest.files:
            return pa.schema([])
        first = self.manifest.files[0]
        with self._folder.open(first.path, first.bytes) as stream:
            schema = self._parquet(stream, first).schema_arrow.remove_metadata()
        if isinstance(self.manifest, DerivedManifest):
            for column in self.manifest.columns:
                if column.name in self.manifest.partitioned_by:
                    schema = schema.append(pa.field(column.name, pa.type_for_alias(column.type)))
        return schema

    def _json_dataset(self) -> Any:
        assert isinstance(self.manifest, BatchManifest)
        return Dataset(self.manifest, getattr(self._folder, "credentials", None)).arrow_dataset()


def checked_parquet(stream: Any) -> pq.ParquetFile:
    """A Parquet file whose footer is compared with its checksum now, and its pages as they are read.

    :raises OSError: it is damaged; Arrow may also raise its own errors.
    """
    metadata = pq.read_metadata(pa.BufferReader(checked_footer(stream, needed=False)))
    return pq.ParquetFile(stream, metadata=metadata, page_checksum_verification=True)


def open_result(result: Result, aws_conn_id: str | None) -> Opened:
    """The dataset that a result names.

    :raises WorkflowError: it has no manifest, or that can't be read.
    """
    uri = manifest_uri_of(result)
    if uri is None:
        raise WorkflowError(
            f"results: {shown(result)} has no 'manifest_uri'; give what the task before returned."
        )
    parent, _, name = uri.rpartition("/")
    try:
        content = place(parent or "/", aws_conn_id).read(name)
        derived = json.loads(content).get("kind") == "derived"
    except StorageError as error:
        raise WorkflowError(
            f"manifest_uri: {uri!r} can't be read ({error}); run the task that makes this dataset again.",
            error.failure_class,
        ) from error
    except (ValueError, AttributeError) as error:
        raise WorkflowError(
            f"manifest_uri: {uri!r} is not a manifest ({error}); name the one of a dataset."
        ) from error
    manifest: DerivedManifest | BatchManifest
    if derived:
        remedy = "restore it, or make the dataset again"
        found = parse_file(DerivedManifest, content, f"manifest_uri: {uri!r}", "a manifest", remedy)
        manifest = as_opened(found, uri)
    else:
        manifest = as_opened(parse_manifest(content, f"manifest_uri: {uri!r}"), uri)
        Dataset(manifest, s3_credentials(manifest.uri, aws_conn_id)).check_files()
    return Opened(manifest, place(manifest.uri, aws_conn_id))


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Rows per batch; fewer if rows are large, such as documents of megabytes."""
    meta = parquet.metadata
    groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    return int(min(_BATCH_ROWS, max(1.0, _BATCH_BYTES / max(1.0, widest))))
