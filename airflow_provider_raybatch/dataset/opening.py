# SPDX-License-Identifier: Apache-2.0
"""Open a finished dataset, wherever it lies now, and read the rows of several."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow_provider_raybatch.contract.base import ContractModel, parse_file, shown
from airflow_provider_raybatch.contract.layout import MANIFESTS, NEWEST_MANIFEST
from airflow_provider_raybatch.contract.location import split_s3
from airflow_provider_raybatch.contract.manifest import BatchManifest, parse_manifest
from airflow_provider_raybatch.dataset.dataset import Dataset
from airflow_provider_raybatch.dataset.derived import DerivedManifest, is_derived
from airflow_provider_raybatch.dataset.errors import DatasetError, UsageError
from airflow_provider_raybatch.dataset.files import DatasetFiles
from airflow_provider_raybatch.dataset.rows import require

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_raybatch.contract.secrets import AwsCredentials

Manifest = TypeVar("Manifest", bound=ContractModel)

Result: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""What a task returned, the `extra` of an asset event, the uri of a manifest, or a destination (its newest
dataset)."""


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
    uri, content = _manifest(result, aws_conn_id)
    manifest = parse_manifest(content, f"manifest: {uri!r}")
    dataset = Dataset(as_opened(manifest, uri), s3_credentials(uri, aws_conn_id))
    dataset.check_files()
    return dataset


def open_files(result: Result, aws_conn_id: str | None = None) -> DatasetFiles[Any]:
    """The files of a dataset of either kind: see :func:`open_dataset`."""
    uri, content = _manifest(result, aws_conn_id)
    field = f"manifest: {uri!r}"
    manifest: BatchManifest | DerivedManifest
    if is_derived(content):
        remedy = "restore it, or make the dataset again"
        manifest = parse_file(DerivedManifest, content, field, "a manifest", remedy)
    else:
        manifest = parse_manifest(content, field)
    files = DatasetFiles(as_opened(manifest, uri), s3_credentials(uri, aws_conn_id))
    files.check_files()
    return files


def _manifest(result: Result, aws_conn_id: str | None) -> tuple[str, bytes]:
    """Where the manifest of a result is, and its content."""
    from airflow_provider_raybatch.storage.errors import StorageError
    from airflow_provider_raybatch.storage.folder import folder

    uri = manifest_uri_of(result)
    if uri is None:
        raise UsageError(
            f"result: {shown(result)} has no 'manifest_uri'; give what the batch inference task returned.",
        )
    parent, _, name = uri.rpartition("/")
    try:
        return uri, folder(parent or ".", s3_credentials(uri, aws_conn_id)).read(name)
    except StorageError as error:
        raise DatasetError(f"manifest: {uri!r} can't be read ({error})", error.failure_class) from error


def as_opened(manifest: Manifest, uri: str) -> Manifest:
    """`manifest` with the locations where it was opened: the dataset may have been copied or moved since.

    :param uri: where the manifest was opened: below its destination in ``manifests/``, or its copy
        ``manifest.json`` there.
    """
    from airflow_provider_raybatch.storage.folder import folder

    fields = {"uri", "manifest_uri", "dead_letter_uri", "errors_uri"}
    places = manifest.model_dump(include=fields, exclude_none=True)
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


class Rows:
    """The rows of one or several datasets, one after the other, in bounded memory.

    :param results: each as :data:`Result`.
    :raises UsageError: no dataset is given, or the types of a column differ.
    :raises RaybatchError: as :func:`open_dataset`.
    """

    def __init__(self, *results: Result, aws_conn_id: str | None = None) -> None:
        if not results:
            raise UsageError("results: none is given; name at least one dataset.")
        self._datasets = [open_files(result, aws_conn_id) for result in results]
        self._schemas = [one.arrow_dataset().schema.remove_metadata() for one in self._datasets]
        import pyarrow as pa

        try:
            self.schema = pa.unify_schemas(self._schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UsageError(
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
        """At least one batch, so that the columns are always known; a dataset without rows has an empty one.

        :param columns: only these, in this order; by default all. A column that a dataset lacks is null.
        :raises UsageError: the dataset lacks the column.
        """
        import pyarrow as pa

        names = list(self.schema.names if columns is None else columns)
        require(self.schema.names, names, "columns")
        schema = pa.schema([self.schema.field(name) for name in names])
        yield pa.RecordBatch.from_pylist([], schema=schema)
        for dataset, its_own in zip(self._datasets, self._schemas, strict=True):
            for batch in dataset.batches([name for name in names if name in its_own.names]):
                arrays = [
                    batch.column(one.name).cast(one.type)
                    if one.name in batch.schema.names
                    else pa.nulls(batch.num_rows, one.type)
                    for one in schema
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries: simpler, but slower."""
        for batch in self.batches(columns):
            yield from batch.to_pylist()
