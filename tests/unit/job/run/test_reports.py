# SPDX-License-Identifier: Apache-2.0
"""What the coordinator tells of its replicas."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.storage.folder import LocalFolder


def made(place: Path) -> Coordinator:
    return Coordinator(LocalFolder(str(place)))


def test_the_last_report_of_each_replica_is_kept(tmp_path: Path) -> None:
    coordinator = made(tmp_path)
    for name, rows in (("a", 1), ("b", 1), ("a", 2)):
        coordinator.report(ReplicaProgress(name, "n", rows=rows))
    assert sorted((one.replica, one.rows) for one in coordinator.snapshot()) == [("a", 2), ("b", 1)]


def test_replaced_process_is_not_waited_for(tmp_path: Path) -> None:
    coordinator = made(tmp_path)
    for process in ("r-1", "r-2"):
        coordinator.report(ReplicaProgress(process, "n", state="ready"))
    coordinator.start("r", "r-1")
    coordinator.start("r", "r-2")
    assert {one.replica: one.state for one in coordinator.snapshot()} == {"r-1": "ended", "r-2": "ready"}
