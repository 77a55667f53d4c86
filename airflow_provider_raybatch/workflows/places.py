# SPDX-License-Identifier: Apache-2.0
"""Folders on disks and in S3; the only module of the workflows that uses the storage layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.location import DESTINATION_SCHEMES, check_location, checked_folder
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Entry, Folder, folder
from airflow_provider_raybatch.workflows.errors import WorkflowError

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.secrets import AwsCredentials

__all__ = ["Entry", "Folder", "StorageError", "credentials", "destination", "place", "s3_parts"]


def credentials(uri: str, aws_conn_id: str | None) -> AwsCredentials | None:
    """The connection's credentials for ``s3://``, else ``None``.

    :param aws_conn_id: Airflow connection of type ``aws``; ``None`` for the worker's own identity.
    """
    if aws_conn_id is None or not uri.startswith("s3://"):
        return None
    from airflow_provider_raybatch.hooks.credentials import aws_credentials

    return aws_credentials(aws_conn_id)


def place(uri: str, aws_conn_id: str | None = None) -> Folder:
    """The folder at `uri`; it need not exist."""
    return folder(uri, credentials(uri, aws_conn_id))


def destination(uri: str, aws_conn_id: str | None, field: str = "destination") -> Folder:
    """The folder at `uri`, to write to.

    :param field: the argument that an error names.
    :raises WorkflowError: `uri` is not the location of a folder.
    """
    try:
        return place(checked_folder(uri), aws_conn_id)
    except ValueError as error:
        raise WorkflowError(f"{field}: {error}.") from None


def files_at(uri: str, aws_conn_id: str | None, field: str) -> tuple[Folder, list[Entry]]:
    """The files at a location (a file, a folder or a bucket), and the folder that contains them.

    :param field: the argument that an error names.
    :raises WorkflowError: `uri` is not a location.
    """
    try:
        check_location(uri, DESTINATION_SCHEMES)
    except ValueError as error:
        raise WorkflowError(f"{field}: {error}.") from None
    parent, _, name = uri.rstrip("/").rpartition("/")
    if parent == "s3:/":  # A whole bucket.
        parent, name = f"s3://{name}", ""
    folder = place(parent or "/", aws_conn_id)
    return folder, folder.list(name)


def s3_parts(uri: str) -> dict[str, str]:
    """Bucket and key prefix of an ``s3://`` location, such as `S3ToRedshiftOperator` needs; else empty."""
    if not uri.startswith("s3://"):
        return {}
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return {"bucket": bucket, "key_prefix": f"{key.rstrip('/')}/" if key else ""}
