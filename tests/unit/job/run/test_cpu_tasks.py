# SPDX-License-Identifier: Apache-2.0
"""What is quickly done starts no process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.job.run import cpu_tasks


@pytest.mark.parametrize(
    ("seconds", "items", "in_tasks"),
    [(0.0, 9, 0), (0.25, 24, 0), (0.25, 25, 21), (7.0, 1, 0), (7.0, 2, 0), (7.0, 3, 2)],
)
def test_what_takes_long_goes_on_in_tasks(
    monkeypatch: pytest.MonkeyPatch, seconds: float, items: int, in_tasks: int
) -> None:
    """The last item is done here, too: a task would not be sooner."""
    assert applied(monkeypatch, seconds, items) == [
        (number, number >= items - in_tasks) for number in range(items)
    ]


def test_large_items_are_done_in_tasks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has no memory for them; one alone starts no process."""
    assert applied(monkeypatch, 0.0, 2, small=False) == [(0, True), (1, True)]
    assert applied(monkeypatch, 7.0, 1, small=False) == [(0, False)]


def test_code_of_users_always_has_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert applied(monkeypatch, 0.0, 2, postprocess="labels:parse") == [(0, True), (1, True)]


def applied(
    monkeypatch: pytest.MonkeyPatch, seconds: float, items: int, small: bool = True, **code: str
) -> list[tuple[int, bool]]:
    """Each item of work that takes so many seconds, with whether it was done in a task."""
    now = 0.0
    monkeypatch.setattr(cpu_tasks, "time", SimpleNamespace(monotonic=lambda: now))

    def spread(_: Any, left: Sequence[int], *others: Any) -> Iterator[tuple[tuple[int, bool], list[Any]]]:
        assert left
        return (((item, True), []) for item in left)

    def work(item: int, _: None) -> tuple[int, bool]:
        nonlocal now
        now += seconds
        return item, False

    monkeypatch.setattr(cpu_tasks, "_spread", spread)
    return list(cpu_tasks.parallel_map(work, range(items), None, small=small, **code))
