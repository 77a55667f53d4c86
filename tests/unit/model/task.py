# SPDX-License-Identifier: Apache-2.0
"""One task in a small model of Airflow: real operator and trigger, with their outside calls as steps."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import FailureClass

from .jobs_api import CLAIM, PENDING
from .process import Wrong
from .users import IN_DOUBT, Users


class World(Users):
    """Airflow, a cluster, and one task that runs a batch inference there, with checks of its end."""

    def ends_well(self, clear: bool = True) -> None:
        """Check that the task succeeds, that a retry does, too, and that a clear makes its own dataset.

        :param clear: whether the clear is tried.
        """
        self.play()
        if self.is_alone:
            self._check_kill()
        for _ in range(4 * self.may_fail):
            if self.state == "failed":
                self.clock.now += 1000.0
                self.clear()
                self.play()
        self._check_end()
        self.before = lambda call: None
        self._check_retry_after_success()
        if clear:
            self.ray.down_until = self.ray.proxy_until = 0.0
            self.clear()
            self.play()
            self._check_end()

    def _check_kill(self) -> None:
        runs = any(one.active for one in self.ray.drivers)
        if self.was_informed and self.state == "failed" and runs:
            raise Wrong("a user ended the task, and its job still runs")
        if not self.in_doubt:
            return
        if self.state == "success":
            if any(one.why == FailureClass.CANCELLED.value for one in self.ray.drivers):
                raise Wrong("a job ended itself though the next attempt followed it")
            return
        self.ray.never_end()  # also what the killed process has submitted since, which counts from its start
        for seconds in (PENDING, IN_DOUBT):
            self.clock.now += seconds
            self.ray.advance()
        if any(one.active for one in self.ray.drivers):
            raise Wrong("a user may have ended the task, and its job still runs")

    def _check_end(self) -> None:
        if self.state != "success":
            raise Wrong("the task failed, and no user wanted that")
        self.clock.now += PENDING + CLAIM  # time in which the fence ends a late process's job
        self.ray.advance()
        left = [
            driver.name for driver in self.ray.drivers if driver.known and driver.active and not driver.acted
        ]
        if left:
            raise Wrong(f"left behind: {left}")

    def _check_retry_after_success(self) -> None:
        returned, requests, drivers = self.result, self.requests, len(self.ray.drivers)
        recorded = self.record is not None and self.record.result == returned
        self.state, self.result = "up_for_retry", None
        self.play()
        if self.result != returned:
            raise Wrong("a retry after success returned something else")
        known = all(driver.known for driver in self.ray.drivers[:drivers])
        if (known and len(self.ray.drivers) > drivers) or (recorded and self.requests > requests):
            raise Wrong("a retry after success asked the cluster")
        if not recorded and not self.store_was_away:
            raise Wrong("the result is not on record")
