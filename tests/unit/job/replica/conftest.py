# SPDX-License-Identifier: Apache-2.0
"""A place with rows, for replicas with a scripted engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.job.replica import replica as replica_module
from tests.support.replicas import Place
from tests.support.scripted import ProcessEndedError, Scripted


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    def end(status: int) -> None:
        raise ProcessEndedError

    Scripted.asked, Scripted.events = [], {}
    monkeypatch.setattr(replica_module.os, "_exit", end)
    place = Place(tmp_path, monkeypatch)
    place.use(Scripted)
    return place
