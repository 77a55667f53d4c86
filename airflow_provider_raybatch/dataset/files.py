# SPDX-License-Identifier: Apache-2.0
"""The files of a finished dataset, compared with its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset.answers import answer_schema
from airflow_provider_raybatch.dataset.errors import DatasetError, missing, reading
from airflow_provider_raybatch.dataset.filesystem import arrow_filesystem

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as pa_dataset

    from airflow_provider_raybatch.contract.secrets import AwsCredentials
    from airflow_provider_raybatch.storage.folder import Folder

_MOST_BYTES = 2**31 - 1
"""Of a block, in Arrow."""
_BLOCK = 64 * 1024 * 1024
"""Bytes of JSONL in memory for each file that is read; a longer row can't be read."""


class DatasetFiles:
    """The files of one commit.

    :param manifest: what it holds.
    :param credentials: for ``s3://``; by default the environment's own identity.
    """

    def __init__(self, manifest: BatchManifest, credentials: AwsCredentials | None = None) -> None:
        from airflow_provider_raybatch.storage.folder import folder

        self.manifest = manifest
        self.credentials = credentials
        self._folder: Folder = folder(manifest.uri, credentials)

    def __repr__(self) -> str:
        rows, files = self.manifest.counts.dataset_rows, len(self.manifest.files)
        counts = f"{count_of(rows, 'row')} in {count_of(files, 'file')}"
        return f"<{type(self).__name__} {self.manifest.uri}: {counts}>"

    @property
    def files(self) -> list[str]:
        """Absolute locations of the files, in the order of the dataset."""
        return [f"{self._folder.uri}/{file.path}" for file in self.manifest.files]

    def check_files(self) -> None:
        """Compare names and sizes in the folder with the manifest's.

        :raises DatasetError: a file is missing, of another size, or one too many.
        """
        there = {entry.path: entry.size for entry in self._folder.list()}
        listed = {file.path: file.bytes for file in self.manifest.files}
        for path, size in listed.items():
            if path not in there:
                raise DatasetError(
                    f"files: {path!r} of {self.manifest.uri} is gone; run the batch inference again."
                )
            if there[path] != size:
                raise DatasetError(
                    f"files: {path!r} of {self.manifest.uri} has {count_of(there[path], 'byte')}, but its "
                    f"manifest says {size:,}; run the batch inference again."
                )
        if extra := sorted(set(there) - set(listed)):
            raise DatasetError(
                f"files: {extra[0]!r} in {self.manifest.uri} is not in the manifest; remove it, readers of "
                "the folder would take it for data."
            )

    def arrow_dataset(self) -> pa_dataset.Dataset:
        """A lazy Arrow dataset. :raises DatasetError: pyarrow is missing."""
        try:
            import pyarrow.dataset as pa_dataset
        except ImportError as error:
            raise missing("pyarrow", error) from error
        if self.manifest.format != "parquet" and not self.manifest.counts.ok:
            return pa_dataset.dataset(self._no_rows())
        if self.manifest.format == OPENAI_BATCH:
            return self._answers()
        paths, place = [file.path for file in self.manifest.files], arrow_filesystem(self._folder)
        if self.manifest.format == "jsonl":
            with reading(self.manifest.uri):
                schema = self._json_schema()
            return pa_dataset.dataset(paths, schema=schema, filesystem=place, format=self._json(_BLOCK))
        parquet = pa_dataset.ParquetFileFormat(pre_buffer=True, page_checksum_verification=True)
        return pa_dataset.dataset(paths, filesystem=place, format=parquet)

    def _json(self, block: int) -> Any:
        """JSONL that is read in blocks of so many bytes, or of a whole file."""
        import pyarrow.dataset as pa_dataset
        from pyarrow.json import ReadOptions

        most = max(file.bytes for file in self.manifest.files)
        return pa_dataset.JsonFileFormat(read_options=ReadOptions(block_size=min(most + 1, block)))

    def _json_schema(self) -> pa.Schema:
        """The columns of JSONL, of as many whole files as it takes to find no column that is null in all."""
        import pyarrow as pa
        import pyarrow.dataset as pa_dataset

        found, place = pa.schema([]), arrow_filesystem(self._folder)
        for file in self.manifest.files:
            more = pa_dataset.dataset(file.path, filesystem=place, format=self._json(_MOST_BYTES)).schema
            try:
                found = pa.unify_schemas([found, more], promote_options="permissive")
            except pa.ArrowException:  # types that have nothing in common
                break
            if not any("null" in str(kind) for kind in found.types):
                break
        return found

    def _answers(self) -> pa_dataset.Dataset:
        """OpenAI's output files, each read as one block, since a line may be longer than any block."""
        import pyarrow.dataset as pa_dataset
        from pyarrow.json import ParseOptions, ReadOptions

        first, most = self.manifest.files[0], max(file.bytes for file in self.manifest.files)
        with reading(self.manifest.uri), self._folder.open(first.path, first.bytes) as lines:
            schema = answer_schema(lines.readline())
        return pa_dataset.dataset(
            [file.path for file in self.manifest.files],
            schema=schema,
            filesystem=arrow_filesystem(self._folder),
            format=pa_dataset.JsonFileFormat(
                read_options=ReadOptions(block_size=min(most + 1, _MOST_BYTES)),
                parse_options=ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            ),
        )

    def _no_rows(self) -> pa.Table:
        """Of an empty JSONL file, where Arrow finds no columns."""
        import pyarrow as pa

        def kind(name: str) -> pa.DataType:
            try:
                return pa.type_for_alias(name)
            except ValueError:  # such as a list
                return pa.string()

        return pa.schema([(one.name, kind(one.type)) for one in self.manifest.columns]).empty_table()

    def check_rows(self, rows: int) -> None:
        """Compare the number of rows that a reader found with the manifest's.

        :raises DatasetError: they differ.
        """
        expected = self.manifest.counts.dataset_rows
        if rows != expected:
            raise DatasetError(
                f"rows: {self.manifest.uri} has {rows:,}, but its manifest says {expected:,}; its files were "
                "changed, so run the batch inference again."
            )
