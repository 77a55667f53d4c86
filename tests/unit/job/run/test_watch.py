# SPDX-License-Identifier: Apache-2.0
"""What the driver learns of its replicas from a coordinator that is slow to answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import ray

from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.run.watch import Watch
from airflow_provider_raybatch.job.work import Done

REPORT = ReplicaProgress("first", "node", state="ready", rows=3, written=3)


class _Coordinator:
    """Gives each news once, to the first call; answers when `is_quick`.

    It stands for a Ray actor's handle and Ray's own `get`.
    """

    def __init__(self) -> None:
        self.is_quick = False
        self._report, self._is_finished = REPORT, False
        self._news: list[Any] = [(1.0, Done([], {}, REPORT))]
        self.news = self

    def finish(self) -> None:
        """Have the rest written."""
        self._report, self._is_finished = replace(REPORT, rows=5, written=5), True
        self._news.append((2.0, Done([], {}, self._report)))

    def remote(self) -> Any:
        news, self._news = self._news, []
        return [self._report], news, self._is_finished, True

    def get(self, reference: Any, timeout: float) -> Any:
        if not self.is_quick:
            raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.")
        return reference


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> _Coordinator:
    made = _Coordinator()
    monkeypatch.setattr(ray, "get", made.get)
    return made


def test_a_late_answer_ends_no_run_and_loses_no_news(coordinator: _Coordinator) -> None:
    watch = Watch(coordinator)
    assert [watch.look(), watch.look()] == [[], []]
    coordinator.is_quick = True
    assert watch.look() == [REPORT]
    assert watch.flushes == 1
    coordinator.is_quick = False
    assert watch.look() == [REPORT]


def test_the_last_look_sees_what_came_after_a_late_answer(coordinator: _Coordinator) -> None:
    """An answer that is late was given while rows were open."""
    watch = Watch(coordinator)
    watch.look()
    coordinator.finish()
    coordinator.is_quick = True
    assert watch.look_once_more()[0].written == 5
    assert watch.is_finished
    assert watch.flushes == 2


def test_the_last_look_ends_without_an_answer(coordinator: _Coordinator) -> None:
    watch = Watch(coordinator)
    assert watch.look_once_more() == []
    assert not watch.is_finished
