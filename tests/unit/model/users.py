# SPDX-License-Identifier: Apache-2.0
"""The actions of users and of machine owners."""

from __future__ import annotations

from airflow_provider_raybatch.contract.control import cleared_package
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

from .airflow import TRIGGERER_TIMEOUT, Airflow
from .process import Process
from .steps import RETRIES

KILL_GRACE = 5.0
IN_DOUBT = 300.0 + 600.0
"""Seconds to which a kill shortens the lease: the task's `retry_delay` and ten minutes."""


class Users(Airflow):
    """Users, who kill or freeze processes, and end or clear the task."""

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
