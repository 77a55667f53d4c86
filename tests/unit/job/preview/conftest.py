# SPDX-License-Identifier: Apache-2.0
"""A preview of a job in this process, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Planned, Previewed, RowPreviewed
from airflow_provider_raybatch.contract.preview import (
    Findings,
    PlanReport,
    Preview,
    PreviewRequest,
    PreviewRow,
)
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.preview import main, sizes, tokens
from airflow_provider_raybatch.job.work import in_sequence
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.specs import asking, spec
from tests.support.whole_job import without_cluster

ANYONE = {
    "task": {"dag_id": "", "run_id": "", "task_id": ""},
    "run_token": "preview",
    "submission_id": "preview-0",
}
ReportOf = Callable[..., Any]


@pytest.fixture
def report_of(monkeypatch: pytest.MonkeyPatch) -> ReportOf:
    """Preview a job's rows, or its sizes: returns the rows and the end, or the report."""
    without_cluster(monkeypatch)
    monkeypatch.setattr(tokens, "ask", tokens.counted)
    monkeypatch.setattr(sizes, "keys_over_the_cluster", in_sequence)

    def at(place: Folder, source: str, verb: str = "preview", /, **fields: Any) -> Any:
        wanted = {name: fields.pop(name) for name in ("rows", "seed", "all_rows") if name in fields}
        job = spec(**{
            "source": [source],
            **asking("Say {row.id}", fields),
            "engine": "echo",
            "destination": place.uri,
            "submission": ANYONE,
            **fields,
        })
        emitted: list[Any] = []
        secrets = Secrets(aws=place.credentials) if isinstance(place, S3Folder) else Secrets()
        main.report(job, PreviewRequest(verb=verb, **wanted), secrets, emitted.append)
        return _told(emitted)

    return at


def _told(emitted: list[Any]) -> tuple[list[PreviewRow], Preview] | PlanReport | Findings:
    rows = [event.row for event in emitted if isinstance(event, RowPreviewed)]
    end = emitted[-1]
    if isinstance(end, Planned):
        return end.report
    assert isinstance(end, Previewed)
    assert end.preview.rows_shown == len(rows)
    return rows, end.preview
