# SPDX-License-Identifier: Apache-2.0
"""For the code after a batch inference: its dataset as files, Arrow or DuckDB, checked against the manifest.

Works inside and outside of a task. Only Arrow and DuckDB need their packages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from airflow_provider_raybatch.contract.base import ContractModel, shown
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.layout import MANIFESTS, NEWEST_MANIFEST
from airflow_provider_raybatch.contract.location import split_s3
from airflow_provider_raybatch.contract.manifest import BatchManifest, parse_manifest
from airflow_provider_raybatch.contract.text import count_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    import pyarrow.dataset as pa_dataset

    from airflow_provider_raybatch.contract.secrets import AwsCredentials
    from airflow_provider_raybatch.storage.folder import Folder

Manifest = TypeVar("Manifest", bound=ContractModel)

Result: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""What a task returned, the `extra` of an asset event, the uri of a manifest, or a destination (its newest
dataset)."""


class DatasetError(RaybatchError):
    """The dataset is not what its manifest says, or can't be opened here."""

    failure_class = FailureClass.STORAGE


def open_dataset(result: Result, aws_conn_id: str | None = None) -> Dataset:
    """Open a committed dataset, and check that the files its manifest lists are there and whole.

    The files are looked for beside the manifest that is opened, so a destination may be copied or moved as a
    whole.

    :param result: what the batch inference task returned, the `extra` of its outlet's event, the manifest's
        uri, or the destination, for its newest dataset.
    :param aws_conn_id: Airflow connection of type ``aws`` for ``s3://``; by default the environment's own
        identity.
    :raises DatasetError: the manifest is missing; or a file of the dataset is missing, of another size, or
        one too many.
    :raises SpecError: the file is not a manifest of this version; the message names it.
    :raises RayConnectionError: the connection can't be used.
    """
    from airflow_provider_raybatch.storage.errors import StorageError
    from airflow_provider_raybatch.storage.folder import folder

    uri = manifest_uri_of(result)
    if uri is None:
        raise DatasetError(
            f"result: {shown(result)} has no 'manifest_uri'; give what the batch inference task returned."
        )
    credentials = s3_credentials(uri, aws_conn_id)
    parent, _, name = uri.rpartition("/")
    try:
        content = folder(parent or ".", credentials).read(name)
    except StorageError as error:
        raise DatasetError(f"manifest: {uri!r} can't be read ({error})") from error
    manifest = parse_manifest(content, f"manifest: {uri!r}")
    dataset = Dataset(as_opened(manifest, uri), credentials)
    dataset.check_files()
    return dataset


def as_opened(manifest: Manifest, uri: str) -> Manifest:
    """`manifest` with the locations where it was opened: the dataset may have been copied or moved since.

    :param uri: where the manifest was opened: below its destination in ``manifests/``, or its copy
        ``manifest.json`` there.
    """
    from airflow_provider_raybatch.storage.folder import folder

    places = manifest.model_dump(include={"uri", "manifest_uri", "dead_letter_uri"}, exclude_none=True)
    made = _destination_of(places["manifest_uri"])
    here = folder(_destination_of(uri) or ("/" if uri.startswith("/") else ".")).uri.rstrip("/")
    return manifest.model_copy(
        update={
            name: f"{here}{place.removeprefix(made)}"
            for name, place in places.items()
            if place.startswith(f"{made}/")
        }
    )


def _destination_of(manifest_uri: str) -> str:
    above, _, name = manifest_uri.rpartition("/")
    # A destination may have the name of its folder of manifests.
    is_copy = name == NEWEST_MANIFEST or above.rpartition("/")[2] != MANIFESTS
    return above if is_copy else above.rpartition("/")[0]


class Dataset:
    """A committed, immutable dataset.

    :param manifest: what it holds.
    :param credentials: for ``s3://``; by default the environment's own identity.
    """

    def __init__(self, manifest: BatchManifest, credentials: AwsCredentials | None = None) -> None:
        from airflow_provider_raybatch.storage.folder import folder

        self.manifest = manifest
        self._credentials = credentials
        self._folder: Folder = folder(manifest.uri, credentials)

    def __repr__(self) -> str:
        rows, files = self.manifest.counts.ok, len(self.manifest.files)
        return f"<Dataset {self.manifest.uri}: {count_of(rows, 'row')} in {count_of(files, 'file')}>"

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

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table, in the order of the dataset.

        :raises DatasetError: pyarrow is missing, a file is damaged, or the number of rows is not the
            manifest's.
        """
        try:
            table = self.arrow_dataset().to_table()
        except (ValueError, OSError) as error:  # of pyarrow, which has both for damage
            raise DatasetError(
                f"files: {self.manifest.uri} can't be read ({error}); run the batch inference again."
            ) from error
        self._check_rows(table.num_rows)
        return table

    def arrow_dataset(self) -> pa_dataset.Dataset:
        """A lazy Arrow dataset. :raises DatasetError: pyarrow is missing."""
        try:
            import pyarrow.dataset as pa_dataset
        except ImportError as error:
            raise _missing("pyarrow", error) from error
        return pa_dataset.dataset(
            [file.path for file in self.manifest.files],
            filesystem=_arrow_filesystem(self._folder),
            format="json"
            if self.manifest.format == "jsonl"
            else pa_dataset.ParquetFileFormat(pre_buffer=True, page_checksum_verification=True),
        )

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """A lazy DuckDB relation, to be queried or inserted from.

        Files in S3 are read through pyarrow, so DuckDB needs neither an extension nor credentials.

        :param connection: by default DuckDB's own default connection.
        :raises DatasetError: DuckDB (or for S3 pyarrow) is missing, or the number of rows is not the
            manifest's.
        """
        try:
            import duckdb
        except ImportError as error:
            raise _missing("duckdb", error) from error
        on = duckdb if connection is None else connection
        remote = split_s3(self._folder.uri) is not None
        if remote and self.manifest.format == "parquet":
            relation = on.from_arrow(self.arrow_dataset())
        elif remote:
            # In memory: DuckDB and a lazy Arrow dataset of JSON wait for each other for ever.
            relation = on.from_arrow(self.to_arrow())
        elif self.manifest.format == "parquet":
            relation = on.read_parquet(self.files)
        else:
            # The stubs know single paths alone; DuckDB takes lists.
            relation = on.read_json(cast(str, self.files), format="newline_delimited")
        (rows,) = relation.aggregate("count(*)").fetchall()[0]
        self._check_rows(rows)
        return relation

    def _check_rows(self, rows: int) -> None:
        if rows != self.manifest.counts.ok:
            raise DatasetError(
                f"rows: {self.manifest.uri} has {rows:,}, but its manifest says {self.manifest.counts.ok:,}; "
                "its files were changed, so run the batch inference again."
            )


def manifest_uri_of(result: Result | None) -> str | None:
    """The manifest's uri in a result; ``None`` if it has none, as that of a skipped task."""
    found: object = result
    if isinstance(result, Mapping):
        found = result.get("manifest_uri")
    elif isinstance(result, os.PathLike):
        found = os.fspath(result)
    if not isinstance(found, str) or not found:
        return None
    return found if found.endswith(".json") else f"{found.rstrip('/')}/{NEWEST_MANIFEST}"


def s3_credentials(uri: str, aws_conn_id: str | None) -> AwsCredentials | None:
    """The credentials of a connection for an ``s3://`` location, else ``None``.

    :param aws_conn_id: Airflow connection of type ``aws``; ``None`` for the environment's own identity.
    :raises RayConnectionError: the connection can't be used.
    """
    if aws_conn_id is None or split_s3(uri) is None:
        return None
    from airflow_provider_raybatch.hooks.credentials import aws_credentials

    return aws_credentials(aws_conn_id)


def _missing(package: str, error: ImportError) -> DatasetError:
    return DatasetError(
        f"{package}: it is not installed here ({error}); install airflow-provider-raybatch[dataset].",
        FailureClass.USER_ERROR,
    )


def _arrow_filesystem(folder: Folder) -> Any:
    """`folder` for pyarrow, so that data is reached as the manifest is, with the same credentials."""
    from pyarrow import PythonFile, fs

    from airflow_provider_raybatch.storage.checksum import checked_footer

    class Handler(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types here
        """Reading alone."""

        def get_type_name(self) -> str:
            return "raybatch"

        def normalize_path(self, path: str) -> str:
            return path

        def get_file_info(self, paths: list[str]) -> list[Any]:
            return [self._info(path) for path in paths]

        def open_input_file(self, path: str) -> Any:
            stream = folder.open(path)
            if path.endswith(".parquet"):
                try:
                    checked_footer(stream, needed=False)
                except OSError as error:
                    raise OSError(f"{path}: {error}") from error
                stream.seek(0)
            return PythonFile(stream, mode="r")

        open_input_stream = open_input_file

        def _info(self, path: str) -> Any:
            entry = folder.head(path)
            if entry is None:
                return fs.FileInfo(path, fs.FileType.NotFound)
            return fs.FileInfo(path, fs.FileType.File, size=entry.size)

        def _no_writing(self, *args: object) -> Any:
            raise NotImplementedError("A committed dataset is only read.")

        get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _no_writing
        delete_root_dir_contents = delete_file = move = copy_file = _no_writing
        open_output_stream = open_append_stream = _no_writing

    return fs.PyFileSystem(Handler())
