# SPDX-License-Identifier: Apache-2.0
"""What users, and the owners of machines, do to a task."""

from __future__ import annotations

from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger

from .airflow import TRIGGERER_TIMEOUT, Airflow
from .process import Process
from .steps import RETRIES

KILL_GRACE = 5.0


class Users(Airflow):
    """They kill processes, freeze them, and end or clear the task."""

    def kill(self) -> None:
        """SIGKILL, of the machine too."""
        assert self.process is not None
        self.process.gone = True

    def evict(self) -> None:
        """SIGTERM to a worker, and SIGKILL; a triggerer just goes."""
        process = self.process
        assert process is not None
        if process.operator is None:
            return self.kill()
        self.stopped_by_user.update(one.name for one in self.ray.drivers)
        return self._terminate(process)

    def clear(self, new_run: bool = True, informed: bool = True) -> None:
        """A user clears the task.

        :param new_run: whether Airflow raises `max_tries`, which it does except in one case.
        :param told: whether the process hears of it.
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
        self._user_ends("queued", informed)

    def mark_failed(self, informed: bool = True) -> None:
        """A user marks the task."""
        self.may_fail = True
        self._user_ends("failed", informed)

    def _user_ends(self, state: str, informed: bool) -> None:
        self.stopped_by_user.update(one.name for one in self.ray.drivers)
        process, self.current, self.state = self.current, None, state
        if informed and process is not None:
            self._terminate(process)

    def _terminate(self, process: Process) -> None:
        if process.operator is not None:
            process.dies_at = self.clock.now + KILL_GRACE
            process.operator.on_kill()
        elif process.trigger is not None:
            process.gone = True
            self.kill_trigger(process.trigger)

    def kill_trigger(self, trigger: RayJobTrigger) -> None:
        """What a triggerer does with a trigger that is not its own any more."""
        self.process = Process()
        self.loops.run(trigger.on_kill())

    def freeze(self, cleared: bool = False) -> str:
        """The present process stops where it is, and Airflow gives it up, or a user clears its task."""
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
        """The frozen process goes on to its end, beside the present one."""
        zombie, self.zombie = self.zombie, None
        if zombie is None:
            return
        before, self.before = self.before, lambda call: None
        zombie.gone = not go_on
        zombie.goes_on.set()
        self._wait(zombie)
        self.before = before
