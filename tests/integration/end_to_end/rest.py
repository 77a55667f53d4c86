# SPDX-License-Identifier: Apache-2.0
"""The part of Airflow's public REST API that the tests use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from .waiting import wait_for

RUN_ENDED = ("success", "failed")
TASK_ENDED = ("success", "failed", "upstream_failed", "skipped", "removed")


class AirflowApi:
    """A client that is logged in as the stack's admin.

    :param evidence: text to add to the error of a wait that failed.
    """

    def __init__(self, url: str, username: str, password: str, evidence: Callable[[], str]) -> None:
        self._http = httpx.Client(base_url=url, timeout=120)
        answer = self._http.post("/auth/token", json={"username": username, "password": password})
        answer.raise_for_status()
        self._http.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        self.evidence = evidence

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Return the answer's document; raise an error status with the answer's text."""
        answer = self._http.request(method, f"/api/v2/{path}", **options)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def connection(self, conn_id: str, conn_type: str, *, extra: Any = None, **fields: Any) -> None:
        """Create a connection, or replace the one of this id."""
        body = {"connection_id": conn_id, "conn_type": conn_type, **fields}
        if extra is not None:
            body["extra"] = json.dumps(extra)
        create = {"action": "create", "entities": [body], "action_on_existence": "overwrite"}
        answer = self.call("PATCH", "connections", json={"actions": [create]})
        assert not answer["create"]["errors"], answer

    def trigger(
        self, dag_id: str, partition_key: str | None = None, logical_date: str | None = None, **conf: Any
    ) -> Run:
        """Start a run now; `conf` sets the DAG's params.

        :param logical_date: ISO 8601; the run counts as one that the schedule started then.
        """
        self.unpause(dag_id)
        body = {"logical_date": logical_date, "conf": conf, "partition_key": partition_key}
        if logical_date is not None:
            body["run_after"] = logical_date
        answer = self.call("POST", f"dags/{dag_id}/dagRuns", json=body)
        return Run(self, dag_id, answer["dag_run_id"])

    def first_run(self, dag_id: str) -> Run:
        """Return the run that Airflow starts when a DAG is unpaused; a new one if the DAG was not paused."""
        if self.runs(dag_id):
            return self.trigger(dag_id)
        self.unpause(dag_id)
        runs = wait_for("the scheduled run", lambda: self.runs(dag_id), 30, self.evidence)
        return runs[0]

    def unpause(self, dag_id: str) -> None:
        self.call("PATCH", f"dags/{dag_id}", json={"is_paused": False})

    def read_at(self, dag_id: str) -> datetime:
        """Return when its file was last read."""
        return datetime.fromisoformat(self.call("GET", f"dags/{dag_id}")["last_parsed_time"])

    def pause(self, dag_id: str) -> None:
        """Pause the DAG, so that the scheduler ignores its runs."""
        self.call("PATCH", f"dags/{dag_id}", json={"is_paused": True})

    def runs(self, dag_id: str) -> list[Run]:
        """Return all runs, the oldest first."""
        answer = self.call("GET", f"dags/{dag_id}/dagRuns", params={"order_by": "id"})
        return [Run(self, dag_id, run["dag_run_id"]) for run in answer["dag_runs"]]

    def asset_events(self, **filters: Any) -> list[dict[str, Any]]:
        """Return the events, the newest first.

        Airflow 3.3 answers 500 while a run of an event is still queued, because its response model needs a
        start date; so that answer means "not yet".
        """

        def read_events() -> dict[str, Any] | None:
            params = {"order_by": "-timestamp", **filters}
            answer = self._http.get("/api/v2/assets/events", params=params)
            if answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
                return None
            assert answer.is_success, f"GET assets/events: {answer.status_code} {answer.text}"
            document: dict[str, Any] = answer.json()
            return document

        events: list[dict[str, Any]] = wait_for("asset events", read_events, 60, self.evidence)[
            "asset_events"
        ]
        return events


@dataclass(frozen=True)
class Run:
    """A DAG run."""

    api: AirflowApi
    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"dags/{self.dag_id}/dagRuns/{self.run_id}"

    @property
    def state(self) -> str:
        return str(self.api.call("GET", self.path)["state"])

    @property
    def state_if_known(self) -> str:
        """Its state; ``unknown`` if a busy machine does not answer."""
        try:
            return self.state
        except httpx.TransportError:
            return "unknown"

    def task(self, task_id: str, map_index: int = -1) -> Task:
        return Task(self, task_id, map_index)

    def tasks(self) -> list[Task]:
        answer = self.api.call("GET", f"{self.path}/taskInstances")
        return [Task(self, ti["task_id"], ti["map_index"]) for ti in answer["task_instances"]]

    def wait(self, state: str = "success", timeout: float = 120.0) -> Run:
        """Wait for the run's end, which must have this `state`."""
        ended = wait_for(
            f"end of {self.dag_id} {self.run_id}",
            lambda: self.state if self.state in RUN_ENDED else None,
            timeout,
            self.evidence,
            pause=1.0,
        )
        assert ended == state, f"{self.dag_id} {self.run_id} ended {ended}\n{self.evidence()}"
        return self

    def evidence(self) -> str:
        """Return states and logs of the run's tasks, and the ends of the stack's logs."""
        lines = []
        for task in self.tasks():
            lines.append(f"--- task {task.task_id}[{task.map_index}]: {task.state}")
            lines += [line for number in range(1, task.read()["try_number"] + 1) for line in task.log(number)]
        return "\n".join([*lines[-200:], self.api.evidence()])


@dataclass(frozen=True)
class Task:
    """A task instance."""

    run: Run
    task_id: str
    map_index: int = -1

    @property
    def path(self) -> str:
        return f"{self.run.path}/taskInstances/{self.task_id}"

    @property
    def instance_path(self) -> str:
        return self.path if self.map_index < 0 else f"{self.path}/{self.map_index}"

    def read(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.run.api.call("GET", self.instance_path)
        return answer

    @property
    def state(self) -> str | None:
        state: str | None = self.read()["state"]
        return state

    def wait(self, *states: str, timeout: float = 60.0) -> dict[str, Any]:
        """Wait for one of these states; any other final state is an error at once."""

        def read_state() -> dict[str, Any] | None:
            found = self.read()
            if found["state"] in states:
                return found
            assert found["state"] not in TASK_ENDED, (
                f"{self.task_id} ended {found['state']}\n{self.run.evidence()}"
            )
            return None

        return wait_for(f"{self.task_id} to be {' or '.join(states)}", read_state, timeout, self.run.evidence)

    def xcom(self, key: str = "return_value") -> Any:
        params = {"map_index": self.map_index, "deserialize": False}
        return self.run.api.call("GET", f"{self.path}/xcomEntries/{key}", params=params)["value"]

    def xcom_keys(self) -> set[str]:
        params = {"map_index": self.map_index}
        answer = self.run.api.call("GET", f"{self.path}/xcomEntries", params=params)
        return {entry["key"] for entry in answer["xcom_entries"]}

    def log_events(self, try_number: int = 1) -> list[dict[str, Any]]:
        """Return the structured log of one try; empty before its start."""
        if self.read()["try_number"] < try_number or self.state in {None, "scheduled", "queued"}:
            return []
        params: dict[str, Any] = {"full_content": True, "map_index": self.map_index}
        answer = self.run.api.call("GET", f"{self.path}/logs/{try_number}", params=params)
        return [event for event in answer["content"] if isinstance(event, dict)]

    def log(self, try_number: int = 1) -> list[str]:
        """Return the lines of the log of one try, errors with their text."""
        lines = []
        for event in self.log_events(try_number):
            lines.append(str(event["event"]))
            lines += [
                f"{error['exc_type']}: {error['exc_value']}" for error in event.get("error_detail") or ()
            ]
        return lines

    def asset_event(self) -> dict[str, Any]:
        """Return the one event of its outlet, once it has finished."""
        run = {"source_dag_id": self.run.dag_id, "source_run_id": self.run.run_id}
        (event,) = self.run.api.asset_events(**run, source_task_id=self.task_id)
        return event

    def run_after(self) -> Run:
        """Return the one run that its event started."""
        (started,) = wait_for(
            "the run that the event starts",
            lambda: self.asset_event()["created_dagruns"],
            60,
            self.run.evidence,
        )
        return Run(self.run.api, started["dag_id"], started["run_id"])

    def mark(self, state: str) -> None:
        """Do what "Mark state as..." does in the UI."""
        self.run.api.call("PATCH", self.instance_path, json={"new_state": state})

    def clear(self) -> None:
        """Do what "Clear" does in the UI."""
        body = {
            "dry_run": False,
            "dag_run_id": self.run.run_id,
            "task_ids": [self.task_id if self.map_index < 0 else [self.task_id, self.map_index]],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.run.api.call("POST", f"dags/{self.run.dag_id}/clearTaskInstances", json=body)
