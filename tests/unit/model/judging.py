# SPDX-License-Identifier: Apache-2.0
"""What must hold at every instant of a task."""

from __future__ import annotations

from .jobs_api import Driver
from .process import Wrong
from .steps import Steps


class Judged(Steps):
    """Checks each start of a job, each stop, and each result."""

    def tokens(self) -> set[str]:
        record = self.record
        return {driver.token for driver in self.ray.drivers} | ({record.token} if record else set())

    def check(self) -> None:
        """Check what must hold at every instant."""
        drivers = self.ray.drivers
        for index in range(self.judged, len(drivers)):
            self._judge_start(drivers[index], drivers[:index])
        self.judged = len(drivers)
        for driver in self.ray.stops[self.stops :]:
            self._judge_stop(driver)
        self.stops = len(self.ray.stops)

    def _judge_start(self, driver: Driver, earlier: list[Driver]) -> None:
        record = self.record
        for one in earlier:
            if one.known and one.token == driver.token and (one.active or one.committed):
                raise Wrong(f"{driver.name} was submitted though {one.name} {one.status}")
        if not self.is_heard and self.frozen_at.startswith("POST"):
            # It had read the store before the clear. The destination's fence or the lease ends a cleared
            # run's job.
            self.straggling.add(driver.name)
        elif record is None or driver.token != record.token:
            raise Wrong(f"{driver.name} is not of the run on record")

    def _judge_stop(self, driver: Driver) -> None:
        record = self.record
        if self.process is self.evicted or driver.name in self.stopped_by_user:
            return
        if record is not None and driver.token != record.token:
            return
        raise Wrong(f"{driver.name} was stopped, and no user wanted that")

    def _judge_result(self) -> None:
        token = str(self.result["uri"]).rpartition("/")[2]
        if token in self.old_tokens:
            raise Wrong("the result of an older run was handed over")
        if token not in self.ray.commits:
            raise Wrong("what was handed over was never committed")
