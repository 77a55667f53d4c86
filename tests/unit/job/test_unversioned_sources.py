# SPDX-License-Identifier: Apache-2.0
"""Whole jobs whose source is behind a server that tells no version, and may answer with other rows."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.layout import SOURCES
from airflow_provider_raybatch.job.input import opening
from airflow_provider_raybatch.job.output import cleanup
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.storage.folder import Folder
from tests.support.published import ROWS, published
from tests.support.reading import as_jsonl
from tests.support.web import Answer, Web
from tests.support.whole_job import attempt, without_cluster

URL = "https://hub.example/export.jsonl"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cluster(monkeypatch)


def export(first: int = 0) -> Answer:
    opening._spool.cache_clear()
    return Answer(as_jsonl([{"id": first + number} for number in range(ROWS)]))


def copies(folder: Folder) -> list[str]:
    return [entry.path for entry in folder.list(SOURCES)]


def killed(
    patch: pytest.MonkeyPatch, step: Any, name: str, folder: Folder, number: int, **fields: Any
) -> None:
    """Run a job that dies at a step."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with patch.context() as patched:
        patched.setattr(step, name, dies)
        with pytest.raises(KeyboardInterrupt):
            attempt(folder, number, URL, **fields)


def test_a_retry_uses_the_copy_of_the_same_content(
    web: Web, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.serve(URL, export())
    kept = []
    for number in range(2):
        killed(monkeypatch, publishing, "commit", folder, number)
        kept.append(copies(folder))
    assert len(kept[0]) == 1
    assert kept[1] == kept[0]
    assert attempt(folder, 2, URL).resumed == ROWS
    assert published(folder) is not None
    assert copies(folder) == []


def test_a_copy_goes_with_the_next_job_if_its_own_died(
    web: Web, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its commit, or right after it."""
    web.serve(URL, export(100), export())
    killed(monkeypatch, publishing, "commit", folder, 0)
    killed(monkeypatch, cleanup, "collect", folder, 1, token="cleared")
    assert len(copies(folder)) == 2
    attempt(folder, 2, URL, token="cleared")
    assert published(folder) is not None
    assert copies(folder) == []
