# SPDX-License-Identifier: Apache-2.0
"""A Ray head in memory with its Jobs API, and the effects of its jobs on their destination."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_raybatch.cluster.submit.resolve import RUN_TOKEN
from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.events import Committed, Event, Failed, Phase, Progress, line
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.submission import order_package, read_order, run_number
from airflow_provider_raybatch.job.control.control import Control
from tests.support.fake_ray import summary

from .clock import Clock

PENDING, CLAIM, LEFT_OVERS, GRACE = 1.0, 2.0, 2.0, 1.5
"""Seconds before a driver runs, then to its claim, from its commit to its end, from a stop to its end."""

Answer = tuple[int, str]


@dataclass
class Driver:
    """A job's process.

    :param known: whether the head still knows it.
    :param works: seconds until it commits or fails.
    :param control: the real one, which keeps its lease.
    :param log_lines: its events.
    :param why: the reason of its end.
    """

    name: str
    body: Mapping[str, Any]
    started: float
    works: float
    control: Control
    known: bool = True
    status: str = "RUNNING"
    claimed: bool = False
    acted: bool = False
    committed: bool = False
    stopping: float | None = None
    log_lines: list[str] = field(default_factory=list)
    why: str = ""

    @property
    def token(self) -> str:
        return str(self.body["metadata"][RUN_TOKEN])

    @property
    def key(self) -> str:
        return str(self.body["runtime_env"]["key"])

    @property
    def active(self) -> bool:
        return self.status == "RUNNING"

    def obey(self, packages: Mapping[str, bytes]) -> None:
        content = packages.get(order_package(self.key))
        self.control.obey(None if content is None else read_order(content, self.key))

    @property
    def is_orphan(self) -> bool:
        try:
            self.control.check(Progress(done=0, total=1))
        except RaybatchError as error:
            return "orphan_timeout" in str(error)
        return False

    def emit(self, event: Event) -> None:
        self.log_lines.append(line(event, self.key, len(self.log_lines)))

    def end(self, status: str, why: str) -> None:
        self.status, self.why = status, why


class Ray:
    """The cluster.

    :param works: seconds that a driver takes.
    :param failures: classes with which the next drivers fail, in order; later drivers commit.
    """

    def __init__(self, clock: Clock, works: float = 25.0, failures: tuple[FailureClass, ...] = ()) -> None:
        self.clock = clock
        self.works = works
        self.failures = list(failures)
        self.session = 1
        self.drivers: list[Driver] = []
        self.claims: list[str] = []
        self.commits: list[str] = []
        self.packages: dict[str, bytes] = {}
        self.down_until = 0.0
        self.proxy_until = 0.0
        self.late: list[tuple[float, dict[str, Any]]] = []
        self.stops: list[Driver] = []

    # What the world reads.

    def known(self, name: str) -> Driver | None:
        return next((one for one in self.drivers if one.known and one.name == name), None)

    def advance(self) -> None:
        """Apply all events up to now."""
        now = self.clock.now
        for at, body in [one for one in self.late if one[0] <= now]:
            self.late.remove((at, body))
            self._start(body)
        due = [(self._next(one), index) for index, one in enumerate(self.drivers) if one.active]
        while due and min(due)[0] <= now:
            driver = self.drivers[min(due)[1]]
            self._act(driver)
            due = [(self._next(one), index) for index, one in enumerate(self.drivers) if one.active]
        for driver in self.drivers:
            if driver.active and not driver.acted and driver.is_orphan:
                self._fail(driver, FailureClass.CANCELLED)

    def _next(self, driver: Driver) -> float:
        runs = driver.started + PENDING
        claims, acts = runs + CLAIM, runs + max(CLAIM, driver.works)
        ends = (acts + LEFT_OVERS if driver.acted else acts) if driver.claimed else claims
        return ends if driver.stopping is None else min(ends, driver.stopping)

    def _act(self, driver: Driver) -> None:
        if driver.stopping is not None and driver.stopping <= self._next(driver):
            driver.end("STOPPED", "stopped")
        elif not driver.claimed:
            self._claim(driver)
        elif driver.acted:
            driver.end("SUCCEEDED", "ended")
        elif self.failures:
            self._fail(driver, self.failures.pop(0))
        elif self.commits[-1:] == [driver.token]:
            self._succeed(driver, reused=True)
        elif self.claims[-1] != driver.token:
            self._fail(driver, FailureClass.SUPERSEDED)
        else:
            self.commits.append(driver.token)
            self._succeed(driver)

    def _claim(self, driver: Driver) -> None:
        driver.claimed = True
        if self.claims and run_number(self.claims[-1]) > run_number(driver.token):
            self._fail(driver, FailureClass.SUPERSEDED)
        elif self.commits[-1:] == [driver.token]:
            self._succeed(driver, reused=True)
        else:
            self.claims.append(driver.token)

    def _succeed(self, driver: Driver, reused: bool = False) -> None:
        driver.acted = driver.committed = True
        driver.works = self.clock.now - driver.started - PENDING
        driver.emit(Committed(summary=summary(f"s3://lake/out/data/{driver.token}", errors=0), reused=reused))

    def _fail(self, driver: Driver, why: FailureClass) -> None:
        driver.emit(Failed(failure_class=why, message="It went wrong."))
        driver.end("FAILED", why.value)

    # Events.

    def forget(self, linger: bool = False) -> None:
        """The head restarts without its memory; its drivers die at once, or continue unseen."""
        for driver in self.drivers:
            driver.known = False
            if driver.active and not linger:
                driver.end("FAILED", "head lost")
        self.packages.clear()
        self._restart()

    def keep(self, survive: bool) -> None:
        """The head restarts with its memory; its drivers continue, or are found dead."""
        if not survive:
            self.kill_drivers()
        self._restart()

    def _restart(self) -> None:
        self.session += 1
        self.down_until = self.clock.now + 15.0

    def kill_drivers(self) -> None:
        for driver in self.drivers:
            if driver.active:
                driver.end("FAILED", "killed")

    def finish(self) -> None:
        """The job's work is done at once."""
        for driver in self.drivers:
            if driver.active and driver.claimed and not driver.acted:
                driver.works = max(0.0, self.clock.now - driver.started - PENDING)
        self.advance()

    def never_end(self) -> None:
        """From now on, present jobs end only if they are stopped."""
        for driver in self.drivers:
            if driver.active and not driver.acted:
                driver.works = 1e6

    def last(self, seconds: float) -> None:
        """Present jobs take longer."""
        for driver in self.drivers:
            if driver.active and not driver.acted:
                driver.works = seconds

    def delete(self) -> None:
        """A user deletes the finished jobs, which Ray allows."""
        for driver in self.drivers:
            driver.known = driver.known and driver.active

    # The API.

    def answer(self, method: str, path: str, params: Mapping[str, str], body: Any, late: bool) -> Answer:
        """Return Ray's answer to a request."""
        self.advance()
        if self.clock.now < self.down_until:
            return 503, "no backend"
        if self.clock.now < self.proxy_until:
            return 404, "default backend"
        match method, path.strip("/").split("/"):
            case "GET", ["api", "version"]:
                return 200, json.dumps({"ray_version": "2.60.0", "session_name": f"session_{self.session}"})
            case "GET", ["api", "packages", _, name]:
                return (200, "{}") if name in self.packages else (404, f"Package {name} does not exist")
            case "PUT", ["api", "packages", _, name]:
                self.packages[name] = body
                for driver in self.drivers:
                    driver.obey(self.packages)
                return 200, "{}"
            case "POST", ["api", "jobs"]:
                if late:
                    self.late.append((self.clock.now + 3.0, body))
                    return 503, "no answer"
                return self._start(body)
            case "GET", ["api", "jobs"]:
                return 200, json.dumps([self._details(one) for one in self.drivers if one.known])
            case "GET", ["api", "v0", "logs", "file"]:
                name = params["filename"].removeprefix("job-driver-").removesuffix(".log")
                found = self.known(name)
                return (
                    (500, "no such file")
                    if found is None
                    else (200, "".join(f"{x}\n" for x in found.log_lines))
                )
            case _, ["api", "jobs", name, *rest]:
                driver = self.known(name)
                if driver is None:
                    return 404, f"Job {name} does not exist"
                if rest == ["stop"]:
                    return self._stop(driver)
                return 200, json.dumps(self._details(driver))
        raise AssertionError(f"{method} {path}")

    def _start(self, body: dict[str, Any]) -> Answer:
        name = body["submission_id"]
        if self.known(name) is not None:
            return 500, f"RuntimeError: status code 400: Job with submission_id {name} already exists."
        control = Control(LimitArguments(), lambda event: None, self.clock.monotonic)
        driver = Driver(name, body, self.clock.now, self.works, control)
        driver.obey(self.packages)
        driver.emit(Phase(phase="generating", message="Generating."))
        self.drivers.append(driver)
        return 200, "{}"

    def _stop(self, driver: Driver) -> Answer:
        if not driver.active:
            return 200, json.dumps({"stopped": False})
        self.stops.append(driver)
        if self.clock.now >= driver.started + PENDING and driver.stopping is None:
            driver.stopping = self.clock.now + GRACE
        return 200, json.dumps({"stopped": True})

    def _details(self, driver: Driver) -> dict[str, Any]:
        pending = driver.active and self.clock.now < driver.started + PENDING
        return {
            "submission_id": driver.name,
            "status": "PENDING" if pending else driver.status,
            "message": "" if driver.active else driver.why,
            "metadata": driver.body["metadata"],
            "start_time": int(driver.started * 1000),
            "driver_node_id": None if pending else "node",
        }
