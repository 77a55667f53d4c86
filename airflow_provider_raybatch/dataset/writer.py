# SPDX-License-Identifier: Apache-2.0
"""Publish record batches as an immutable dataset: Parquet parts first, the manifest last."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_raybatch.contract.layout import HIVE_NULL
from airflow_provider_raybatch.contract.location import checked_folder
from airflow_provider_raybatch.contract.manifest import Column, ManifestFile
from airflow_provider_raybatch.dataset.derived import DerivedManifest
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.opening import s3_credentials
from airflow_provider_raybatch.job.input.table import parquet_file
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder, folder

_WAITING_BYTES = 128 * 1024 * 1024
"""Bytes of rows that are in no part yet, over all partitions; so a part has no more either."""
_MOST_PARTITIONS = 1000
_PARTITION_TYPES = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
)
"""Types whose values can be written into a path and read back."""


def folder_to_write(uri: str, aws_conn_id: str | None, field: str) -> Folder:
    """The folder at `uri`, which need not exist.

    :param field: the argument that an error names.
    :raises UsageError: `uri` is not the location of a folder.
    """
    try:
        uri = checked_folder(uri)
    except ValueError as error:
        raise UsageError(f"{field}: {error}.") from None
    return folder(uri, s3_credentials(uri, aws_conn_id))


class DatasetWriter:
    """Writes one dataset. A context manager that publishes at its end, unless an exception is raised.

    Readers start from the manifest, which is written last, so they never see an incomplete dataset. Memory is
    bounded, whatever the number of rows.

    :param destination: folder, local or ``s3://``; earlier datasets in it are kept. The files are in
        ``data/<version>/``, the manifest in ``manifests/<version>.json``, with a copy in ``manifest.json``.
    :param partition_by: columns that become path segments ``column=value/``, at most 1,000 combinations.
    :raises UsageError: `destination` is not the location of a folder.
    """

    def __init__(
        self, destination: str, aws_conn_id: str | None = None, partition_by: Sequence[str] = ()
    ) -> None:
        self._folder = folder_to_write(destination, aws_conn_id, "destination")
        self._partition_by = list(partition_by)
        self._version = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:8]}"
        self._schema: pa.Schema | None = None
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._bytes = Counter[str]()
        self._files: list[ManifestFile] = []
        self._manifest: DerivedManifest | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            self.publish()
        except BaseException:
            self._discard()
            raise

    @property
    def manifest(self) -> DerivedManifest:
        """Manifest of the published dataset.

        :raises UsageError: it is not published yet.
        """
        if self._manifest is None:
            raise UsageError("writer: its dataset is not published yet; leave the `with` block first.")
        return self._manifest

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows.

        :raises UsageError: no batch was written, so they are unknown.
        """
        if self._schema is None:
            raise UsageError("rows: no batch was written; write at least an empty one with the columns.")
        return self._schema

    @property
    def result(self) -> dict[str, Any]:
        """What a task returns for the next one, with the same keys as a batch inference's result."""
        return self.manifest.result()

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows. The first batch defines the columns; it may be empty.

        :raises UsageError: the columns differ from the first batch's, or there are too many partitions.
        """
        if self._schema is None:
            self._begin(batch.schema)
        batch = self._fitting(batch)
        for prefix, rows in self._partitioned(batch):
            if rows.num_rows:
                self._add(prefix, rows)

    def publish(self) -> None:
        """Write the remaining rows, then the manifest. The end of a ``with`` block calls this.

        :raises UsageError: no batch was written, so the columns are unknown.
        """
        schema = self.schema
        if not self._waiting:
            self._waiting[""] = []  # An empty file still shows readers of the folder the columns.
        for prefix in sorted(self._waiting):
            if self._waiting[prefix] or not self._files:
                self._finish(prefix)
        uri = f"{self._folder.uri}/data/{self._version}"
        self._files.sort(key=lambda file: file.path)
        manifest = DerivedManifest(
            uri=uri,
            manifest_uri=f"{self._folder.uri}/manifests/{self._version}.json",
            files=self._files,
            schema=[Column(name=one.name, type=str(one.type)) for one in schema],
            partitioned_by=self._partition_by,
            rows=sum(file.rows for file in self._files),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        content = manifest.model_dump_json(by_alias=True, indent=1).encode()
        self._folder.create(f"manifests/{self._version}.json", content)
        self._folder.write("manifest.json", content)
        self._manifest = manifest

    def _discard(self) -> None:
        with contextlib.suppress(StorageError):  # The original error matters more.
            self._folder.delete(f"data/{self._version}/{file.path}" for file in self._files)

    def _begin(self, schema: pa.Schema) -> None:
        if missing := [name for name in self._partition_by if name not in schema.names]:
            raise UsageError(
                f"partition_by: {missing[0]!r} is not a column; the columns are {', '.join(schema.names)}."
            )
        for name in self._partition_by:
            kind = schema.field(name).type
            if not any(fits(kind) for fits in _PARTITION_TYPES):
                raise UsageError(
                    f"partition_by: {name!r} holds {kind}; partition by text, integers, booleans or dates."
                )
        if len(self._partition_by) == len(schema.names):
            raise UsageError("partition_by: no column is left for the files; partition by fewer columns.")
        self._schema = schema.remove_metadata()

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self._schema
        assert schema is not None
        if batch.schema.equals(schema):
            return batch
        if set(batch.schema.names) != set(schema.names):
            odd = sorted(set(batch.schema.names) ^ set(schema.names))[0]
            raise UsageError(
                f"columns: {odd!r} is not in all batches; give all of them the same columns, null where a "
                "row has no value."
            )
        try:
            columns = [batch.column(name).cast(schema.field(name).type) for name in schema.names]
        except pa.ArrowInvalid as error:
            raise UsageError(
                f"columns: a batch has other types than the first one ({error}); cast before writing."
            ) from error
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _partitioned(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        if not self._partition_by or not batch.num_rows:
            return [("", batch)]
        names = [_segments(name, batch.column(name)) for name in self._partition_by]
        prefixes = pa.array(["".join(parts) for parts in zip(*names, strict=True)])
        rest = batch.drop_columns(self._partition_by)
        return [(value, rest.filter(pc.equal(prefixes, value))) for value in pc.unique(prefixes).to_pylist()]

    def _add(self, prefix: str, rows: pa.RecordBatch) -> None:
        self._waiting.setdefault(prefix, []).append(rows)
        self._bytes[prefix] += rows.nbytes
        if len(self._waiting) > _MOST_PARTITIONS:
            raise UsageError(
                f"partition_by: {', '.join(self._partition_by)} have more than {_MOST_PARTITIONS:,} values; "
                "partition by columns with few values."
            )
        if self._bytes.total() > _WAITING_BYTES:
            self._finish(max(self._bytes, key=lambda name: self._bytes[name]))

    def _finish(self, prefix: str) -> None:
        """Write the waiting rows of a partition as a part."""
        schema = pa.schema([one for one in self.schema if one.name not in self._partition_by])
        rows = pa.Table.from_batches(self._waiting[prefix], schema)
        self._waiting[prefix], self._bytes[prefix] = [], 0
        path, content = f"{prefix}part-{len(self._files):05d}.parquet", parquet_file([rows], schema)
        self._folder.write(f"data/{self._version}/{path}", content)
        self._files.append(ManifestFile(path=path, rows=rows.num_rows, bytes=len(content)))


def _segments(name: str, values: pa.Array) -> list[str]:
    """The path segment of each value, as in Hive."""
    texts = values.cast(pa.string()).to_pylist()
    return [f"{quote(name)}={HIVE_NULL if text in (None, '') else quote(text, safe='')}/" for text in texts]
