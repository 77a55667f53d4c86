# SPDX-License-Identifier: Apache-2.0
"""The installation's id is made once, also by tasks at the same time, and never after a failed read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_raybatch.exceptions import RayBatchUnavailableException
from airflow_provider_raybatch.hooks import lookup
from airflow_provider_raybatch.hooks.lookup import VARIABLE, installation_id, known_installation_id


class Variables:
    """Airflow's Variables as tasks see them: an upsert, and "not found" where a read fails."""

    def __init__(self, **failures: Exception | None) -> None:
        self.values: dict[str, str] = {}
        self.unreadable = False
        self.failures = failures
        self.before_set: Any = lambda: None

    def _fail(self, what: str) -> None:
        if self.failures.get(what):
            raise self.failures[what]  # type: ignore[misc]

    def get(self, key: str, default: Any = None) -> Any:
        self._fail("get")
        return default if self.unreadable else self.values.get(key, default)

    def keys(self, prefix: str | None = None) -> list[str]:
        self._fail("keys")
        return [key for key in self.values if key.startswith(prefix or "")]

    def set(self, key: str, value: str, description: str | None = None) -> None:
        self._fail("set")
        self.before_set()
        self.values[key] = value


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Variables:
    made = Variables()
    monkeypatch.setattr(lookup, "Variable", made)
    monkeypatch.setattr(lookup, "_PAUSE", 0.05)
    monkeypatch.setattr(lookup, "_LONGEST_STAGGER", 0.0)
    return made


def test_id_is_made_once(variables: Variables) -> None:
    first = installation_id()
    assert variables.values == {VARIABLE: first}
    variables.failures["set"] = AssertionError("written again")
    assert installation_id() == first


def test_the_command_line_makes_no_id(variables: Variables) -> None:
    assert known_installation_id() is None
    assert variables.values == {}
    assert installation_id() == known_installation_id()
    variables.failures["get"] = ConnectionError("the database is away")
    assert known_installation_id() is None


def test_a_value_of_the_users_own_is_taken(variables: Variables) -> None:
    variables.values[VARIABLE] = " production\n"
    assert installation_id() == "production"


def test_a_task_of_a_team_writes_a_variable_of_the_teams_own(variables: Variables) -> None:
    made = installation_id("red")
    assert variables.values == {f"{VARIABLE}_of_red": made}
    assert installation_id("red") == made != installation_id("blue")
    variables.values[VARIABLE] = "for all teams"
    assert installation_id("red") == made
    assert installation_id("green") == "for all teams"


def ids_of_three_tasks() -> set[str]:
    with ThreadPoolExecutor(3) as pool:
        return {future.result(60) for future in [pool.submit(installation_id) for _ in range(3)]}


def test_concurrent_first_tasks_agree_on_one_id(variables: Variables) -> None:
    variables.before_set = threading.Barrier(3).wait  # each has found none
    assert ids_of_three_tasks() == {variables.values[VARIABLE]}


def test_tasks_at_the_same_time_write_at_different_times(
    variables: Variables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One write can't arrive after another one that a task has settled on."""
    waits = iter([0.0, 2.0, 2.0])
    monkeypatch.setattr("random.uniform", lambda *_: next(waits))
    written: list[str] = []
    has_written, store = threading.Event(), variables.set

    def stored(key: str, value: str, description: str | None = None) -> None:
        store(key, value)
        written.append("once")
        has_written.set()

    def sleep(seconds: float) -> None:
        assert seconds < 2 or has_written.wait(60)

    monkeypatch.setattr(variables, "set", stored)
    monkeypatch.setattr(lookup, "time", SimpleNamespace(sleep=sleep))
    barrier = threading.Barrier(3)

    def keys(prefix: str | None = None) -> list[str]:
        barrier.wait()  # each has found none
        return []

    monkeypatch.setattr(variables, "keys", keys)
    assert ids_of_three_tasks() == {variables.values[VARIABLE]}
    assert written == ["once"]


def test_a_value_that_another_task_makes_meanwhile_is_taken(variables: Variables) -> None:
    listed = variables.keys

    def keys(prefix: str | None = None) -> list[str]:
        variables.values[VARIABLE] = "made meanwhile"
        return listed(prefix)

    variables.keys = keys  # type: ignore[method-assign]
    assert installation_id() == "made meanwhile"


def test_a_value_that_can_not_be_read_is_not_replaced(variables: Variables) -> None:
    variables.values[VARIABLE] = "a"
    variables.unreadable = True  # as with an unreachable secrets backend or API server
    with pytest.raises(RayBatchUnavailableException, match=f"Variable '{VARIABLE}': it can't be read"):
        installation_id()
    assert variables.values == {VARIABLE: "a"}


@pytest.mark.parametrize(("call", "what"), [("get", "read"), ("keys", "listed"), ("set", "stored")])
def test_a_failure_is_one_sentence_and_worth_a_retry(variables: Variables, call: str, what: str) -> None:
    variables.failures[call] = ConnectionError("the API server is away")
    with pytest.raises(RayBatchUnavailableException, match=rf"it can't be {what} \(.*is away.*namespace"):
        installation_id()


def test_a_write_that_is_lost_is_noticed(variables: Variables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "set", lambda *args, **kwargs: None)
    monkeypatch.setattr(lookup, "_READS", 3)
    with pytest.raises(RayBatchUnavailableException, match="it can't be stored"):
        installation_id()
