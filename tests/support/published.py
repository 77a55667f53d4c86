# SPDX-License-Identifier: Apache-2.0
"""A reader of a destination while a job publishes there."""

from __future__ import annotations

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.publishing import rows_of
from tests.support.specs import submitted

ROWS = 12


def published(folder: Folder) -> BatchManifest | None:
    """Read the dataset, and compare all its files with the manifest."""
    last = Journal(folder, submitted().submission, take_over=False).last()
    if last is None or last.published is None:
        return None
    manifest = parse(BatchManifest, folder.read(last.published.manifest))
    assert [row["id"] for row in rows_of(folder, manifest)] == list(range(ROWS))
    return manifest
