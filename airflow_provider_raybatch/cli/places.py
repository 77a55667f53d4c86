# SPDX-License-Identifier: Apache-2.0
"""Places that a user names: files and folders, with the credentials for them, and the dataset there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_raybatch.cli.terminal import quietly
from airflow_provider_raybatch.contract.layout import NEWEST_MANIFEST
from airflow_provider_raybatch.dataset import Dataset, DatasetError, open_dataset, s3_credentials
from airflow_provider_raybatch.storage.folder import Folder, folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.secrets import AwsCredentials

Result = TypeVar("Result")

_MOST_TRIED = 100
"""Runs without a dataset that are passed over: they failed, or are not done."""


def absolute(location: str) -> str:
    """`location`, a local one as an absolute path. Symbolic links in it stay."""
    if "://" in location or not location:
        return location
    return os.path.abspath(os.path.expanduser(location))  # noqa: PTH100, PTH111 - keeps symbolic links


def absolute_folder(name: str) -> str:
    """The absolute path of a folder; `name` itself where there is none, such as a Hugging Face id."""
    place = absolute(name)
    return place if os.path.isdir(place) else name  # noqa: PTH112 - takes any text


def s3_access(place: str, aws_conn_id: str | None) -> AwsCredentials | None:
    """The credentials for a location, if it is in S3 and a connection is named.

    :raises RayConnectionError: the connection can't be used.
    """
    return quietly_with(aws_conn_id, lambda: s3_credentials(place, aws_conn_id))


def quietly_with(aws_conn_id: str | None, call: Callable[[], Result]) -> Result:
    """What `call` returns, which reads a connection if one is named."""
    # Without one, Airflow is not needed, and importing it takes seconds.
    return call() if aws_conn_id is None else quietly(call)


def dataset_at(place: str, aws_conn_id: str | None) -> Dataset:
    """Open the dataset of a destination, or of the last run with one below `place`, by the names of folders.

    :param place: absolute; or a manifest's uri.
    :raises DatasetError: there is none, or it is damaged.
    """
    return quietly_with(aws_conn_id, lambda: _dataset_at(place, aws_conn_id))


def _dataset_at(place: str, aws_conn_id: str | None) -> Dataset:
    try:
        return open_dataset(place, aws_conn_id)
    except DatasetError:
        runs = folder(place, s3_credentials(place, aws_conn_id))
        for name in reversed(subfolders(runs)[-_MOST_TRIED:]):
            if runs.head(f"{name}/{NEWEST_MANIFEST}") is not None:
                return open_dataset(f"{runs.uri}/{name}", aws_conn_id)
        if place.endswith(".json") or runs.head(NEWEST_MANIFEST) is not None:
            raise  # of this dataset
        raise DatasetError(
            f"dataset: no finished dataset is at {place}, nor in a folder in it; give a task's destination "
            "(a task that failed or is not done has none)."
        ) from None


def subfolders(place: Folder, prefix: str = "") -> Sequence[str]:
    """Names of the folders in a folder, in their order."""
    if isinstance(place, S3Folder):
        return place.folders(prefix)
    path = Path(place.uri, prefix)
    return sorted(child.name for child in path.iterdir() if child.is_dir()) if path.is_dir() else ()
