# SPDX-License-Identifier: Apache-2.0
"""What the coordinator tells of its replicas."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.storage.folder import LocalFolder


def test_reports_are_the_latest_of_each_process(tmp_path: Path) -> None:
    """One that another process has replaced is not waited for."""
    coordinator = Coordinator(LocalFolder(str(tmp_path)))
    for process, rows in (("r-1", 1), ("s-1", 1), ("r-1", 2)):
        coordinator.report(ReplicaProgress(process, "n", state="ready", rows=rows))
    for process in ("r-1", "r-2"):
        coordinator.start("r", process)
    found = sorted((one.replica, one.rows, one.state) for one in coordinator.snapshot())
    assert found == [("r-1", 2, "ended"), ("s-1", 1, "ready")]
