# SPDX-License-Identifier: Apache-2.0
"""What both entrypoints share: a driver that is not followed ends, and says so in its log."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ray

from airflow_provider_raybatch.contract.events import Failed, read_line
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.control import private_package, process
from airflow_provider_raybatch.job.control.private_package import PrivatePackage
from airflow_provider_raybatch.job.control.process import Driver, drive
from tests.support.specs import submitted

KEY = "ab" * 32


def waiting(driver: Driver) -> None:
    while True:
        driver.control.check()
        time.sleep(0.01)


def test_a_driver_without_a_follower_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(private_package, "fetch", lambda name: PrivatePackage(KEY))
    monkeypatch.setattr(process, "orders_for", lambda key: lambda: None)
    monkeypatch.setattr(process, "stop_on_sigterm", lambda control: None)
    path = tmp_path / "spec.json"
    path.write_text(submitted(orphan_timeout=0.05).model_dump_json())
    assert drive(str(path), waiting) == 1
    found = read_line(capsys.readouterr().out.splitlines()[-1], KEY)
    assert found is not None
    assert isinstance(found.event, Failed)
    assert found.event.failure_class is FailureClass.CANCELLED
    assert found.event.message.startswith("orphan_timeout: no task has followed the job for")
