# SPDX-License-Identifier: Apache-2.0
"""A preview of a job in this process, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Planned, Previewed, RowPreviewed
from airflow_provider_raybatch.contract.preview import (
    Findings,
    PlanReport,
    Preview,
    PreviewRequest,
    PreviewRow,
    RowAnswer,
)
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.job.control.control import Control
from airflow_provider_raybatch.job.control.process import Driver
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.preview import ask, asker, main, sizes, tokens
from airflow_provider_raybatch.job.preview.tokens import shares
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.warm_engines.source import OWN_ENGINES
from airflow_provider_raybatch.job.work import in_sequence
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.replicas import Handle
from tests.support.specs import asking, spec
from tests.support.whole_job import without_cluster

ANYONE = {
    "task": {"dag_id": "", "run_id": "", "task_id": ""},
    "run_token": "preview",
    "submission_id": "preview-0",
}
ReportOf = Callable[..., Any]


@pytest.fixture
def told() -> list[Any]:
    """The events of the last preview."""
    return []


@pytest.fixture
def report_of(monkeypatch: pytest.MonkeyPatch, told: list[Any]) -> ReportOf:
    """Preview a job's rows, or its sizes: returns the rows and the end, or the report."""
    without_cluster(monkeypatch)
    monkeypatch.setattr(tokens, "ask", _in_shares)
    monkeypatch.setattr(sizes, "keys_over_the_cluster", in_sequence)
    monkeypatch.setattr(ask, "_source", lambda *_: (OWN_ENGINES, False))
    monkeypatch.setattr(ask, "_waited_for", _asked_here)
    monkeypatch.setattr(asker, "_node", lambda: "node-1")
    monkeypatch.setattr(cluster_view, "has_idle", lambda plan: True)

    def at(place: Folder, source: str, verb: str = "preview", /, **fields: Any) -> Any:
        wanted = {name: fields.pop(name) for name in ("rows", "seed", "all_rows", "ask") if name in fields}
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
        assert job.submission is not None
        driver = Driver(job, job.submission, secrets, emitted.append, Control(job, emitted.append))
        main.report(driver, PreviewRequest(verb=verb, **wanted))
        told[:] = emitted
        return _told(emitted)

    return at


def _in_shares(question: tokens.Question) -> tokens.Counted:
    """Count as several tasks do."""
    pieces = shares(list(question.picked), 3, 20)
    return tokens.together([tokens.counted(replace(question, picked=piece)) for piece in pieces])


def _asked_here(asking: asker.Asking, *_: Any) -> list[RowAnswer]:
    plan: Any = None
    return asker.answers(asking, Handle(Coordinator(asking.job.folder), asking.job, plan))


def _told(emitted: list[Any]) -> tuple[list[PreviewRow], Preview] | PlanReport | Findings:
    rows = [event.row for event in emitted if isinstance(event, RowPreviewed)]
    end = emitted[-1]
    if isinstance(end, Planned):
        return end.report
    assert isinstance(end, Previewed)
    assert end.preview.rows_shown == len(rows)
    return rows, end.preview
