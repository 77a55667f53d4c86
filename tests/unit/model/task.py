# SPDX-License-Identifier: Apache-2.0
"""One task in a small model of Airflow: real operator and trigger, with their outside calls as steps."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.submission import cleared_package
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

from .airflow import TRIGGERER_TIMEOUT, Airflow
from .jobs_api import CLAIM, PENDING
from .process import Process, Wrong
from .steps import RETRIES

KILL_GRACE = 5.0
IN_DOUBT = 300.0 + 600.0
"""Seconds to which a kill shortens the lease: the task's `retry_delay` and ten minutes."""


class World(Airflow):
    """Airflow, its users, a cluster, and one task that runs a batch inference there.

    Users kill or freeze processes, and end or clear the task.
    """

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

    # Users, and owners of machines.

    def kill(self) -> None:
        """SIGKILL, which may hit the whole machine."""
        assert self.process is not None
        self.process.gone = True

    def evict(self, silently: bool = False) -> None:
        """SIGTERM to a worker, then SIGKILL; a triggerer gets SIGKILL alone.

        :param silently: whether Airflow answers nothing meanwhile; the job then takes longer than its lease.
        """
        process = self.process
        assert process is not None
        if process.operator is None:
            return self.kill()
        if silently:
            self.ray.last(2 * IN_DOUBT)
        self.evicted = process
        return self._terminate(process, silently)

    def clear(self, new_run: bool = True, informed: bool = True) -> None:
        """A user clears the task.

        :param new_run: whether Airflow raises `max_tries`, which it does except in one case.
        :param informed: whether the process is informed.
        """
        if self.state in {"success", "failed"}:
            new_run = True
        if new_run:
            self.old_tokens |= self.tokens()
            self.max_tries = self.try_number + RETRIES
            if self.forgetful:
                self.store.values.clear()
            # A thawed process would follow such a job before its successor can stop it.
            if not self.may_freeze:
                self.ray.never_end()
        self.try_number += 1
        self.resume = None
        record = self.record
        self.restarting = self.current is not None and self.current.operator is not None
        try:
            self._user_ends("queued", informed)
        finally:
            self.restarting = False
            if record is not None and cleared_package(record.key) in self.ray.packages:
                self.old_tokens.add(record.token)  # the next attempt knows, whatever Airflow counts

    def mark_failed(self, informed: bool = True, silently: bool = False) -> None:
        """A user marks the task, and Airflow may answer nothing meanwhile."""
        self.may_fail = True
        if silently:
            self.ray.never_end()
        self._user_ends("failed", informed, silently)

    def _user_ends(self, state: str, informed: bool, silently: bool = False) -> None:
        self.stopped_by_user.update(one.name for one in self.ray.drivers)
        process, self.current, self.state = self.current, None, state
        if informed and process is not None:
            self.told_to_end = process
            self._terminate(process, silently)
            self.told_to_end = None

    def _terminate(self, process: Process, silently: bool = False) -> None:
        self.silent = self.in_doubt = silently
        try:
            self._kill(process)
        finally:
            self.silent = False

    def _kill(self, process: Process) -> None:
        if process.operator is not None:
            process.dies_at = self.clock.now + KILL_GRACE
            process.operator.on_kill()
        elif process.trigger is not None:
            process.gone = True
            self.kill_trigger(process.trigger)

    def kill_trigger(self, trigger: RayJobTrigger) -> None:
        """Do what a triggerer does with a trigger that it has lost."""
        self.process = Process()
        self.loops.run(trigger.on_kill())

    def freeze(self, cleared: bool = False) -> str:
        """Freeze the present process; then Airflow gives it up, or a user clears its task."""
        process, self.zombie = self.process, self.process
        self.frozen_at = self.call
        assert process is not None
        if cleared:
            self.clear(informed=False)
        elif process.operator is not None:
            self._lost(process)
        else:
            self.clock.now += TRIGGERER_TIMEOUT
        self.current = None
        return "freeze"

    def thaw(self, go_on: bool = True) -> None:
        """Let the frozen process run to its end, beside the present one."""
        zombie, self.zombie = self.zombie, None
        if zombie is None:
            return
        before, self.before = self.before, lambda call: None
        zombie.gone = not go_on
        zombie.goes_on.set()
        self._wait(zombie)
        self.before = before
