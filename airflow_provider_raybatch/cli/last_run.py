# SPDX-License-Identifier: Apache-2.0
"""The dataset that a user names: a destination, or a folder with a destination for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from airflow_provider_raybatch.cli.connection import quietly_with
from airflow_provider_raybatch.contract.layout import NEWEST_MANIFEST
from airflow_provider_raybatch.dataset import Dataset, DatasetError, open_dataset, s3_credentials
from airflow_provider_raybatch.storage.folder import Folder, folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder

_MOST_TRIED = 100
"""Runs without a dataset that are passed over: they failed, or are not done."""


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
