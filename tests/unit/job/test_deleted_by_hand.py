# SPDX-License-Identifier: Apache-2.0
"""What docs/reference/storage.md allows to delete in a destination, deleted; and what follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.layout import DATA, MANIFESTS, NEWEST_MANIFEST, PARTS
from airflow_provider_raybatch.contract.manifest import Summary
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.published import ROWS, published
from tests.support.specs import submitted
from tests.support.whole_job import attempt, numbered, without_cluster


def delete(folder: Folder, *prefixes: str) -> None:
    for prefix in prefixes:
        folder.delete([entry.path for entry in folder.list(prefix)])


class Destination:
    """A folder in which runs of one task publish."""

    def __init__(self, folder: Folder, source: str) -> None:
        self.folder, self.source = folder, source

    def run(self, number: int) -> Summary:
        """Publish the dataset of a run."""
        submission = submitted(number, f"token-{number}").submission
        return attempt(self.folder, number, self.source, submission=submission)

    def names(self, prefix: str) -> list[str]:
        return [entry.path for entry in self.folder.list(prefix)]


def commit(summary: Summary) -> str:
    return summary.uri.rpartition("/")[2]


@pytest.fixture
def destination(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Destination:
    without_cluster(monkeypatch)
    return Destination(folder, numbered(tmp_path / "rows.jsonl", ROWS))


def test_the_dataset_of_an_older_run(destination: Destination) -> None:
    older, newer = destination.run(0), destination.run(1)
    delete(destination.folder, f"{DATA}/{commit(older)}", f"{MANIFESTS}/{commit(older)}.json")
    assert destination.run(1) == newer
    assert destination.run(2).rows == ROWS
    assert published(destination.folder) is not None


def test_all_parts(destination: Destination) -> None:
    destination.run(0)
    delete(destination.folder, PARTS)
    assert published(destination.folder) is not None
    after = destination.run(1)
    assert (after.rows, after.resumed, after.reused) == (ROWS, 0, 0)


def test_the_newest_dataset(destination: Destination) -> None:
    """Its own run would hand on a dataset that is gone, so it is asked for by a new one."""
    newest = destination.run(0)
    delete(destination.folder, DATA, MANIFESTS, NEWEST_MANIFEST)
    with pytest.raises(StorageError, match=f"manifests/{commit(newest)}.json: can't read it"):
        destination.run(0)
    after = destination.run(1)
    assert (after.rows, commit(after) != commit(newest)) == (ROWS, True)
    assert published(destination.folder) is not None


def test_the_copy_of_the_newest_manifest(destination: Destination) -> None:
    first = destination.run(0)
    delete(destination.folder, NEWEST_MANIFEST)
    assert destination.run(0) == first
    assert destination.names(NEWEST_MANIFEST) == [NEWEST_MANIFEST]


def test_everything(destination: Destination) -> None:
    destination.run(0)
    delete(destination.folder, "")
    after = destination.run(0)
    assert (after.rows, after.resumed) == (ROWS, 0)
    assert published(destination.folder) is not None
