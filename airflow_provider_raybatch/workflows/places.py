# SPDX-License-Identifier: Apache-2.0
"""Folders on disks and in S3, reached with the credentials of an Airflow connection."""

from __future__ import annotations

from airflow_provider_raybatch.contract.location import DESTINATION_SCHEMES, check_location, checked_folder
from airflow_provider_raybatch.dataset import s3_credentials
from airflow_provider_raybatch.storage.entry import Entry
from airflow_provider_raybatch.storage.folder import Folder, folder
from airflow_provider_raybatch.workflows.errors import WorkflowError


def place(uri: str, aws_conn_id: str | None = None) -> Folder:
    """The folder at `uri`; it need not exist."""
    return folder(uri, s3_credentials(uri, aws_conn_id))


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
