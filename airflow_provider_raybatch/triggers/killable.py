# SPDX-License-Identifier: Apache-2.0
"""What a trigger does when Airflow ends it: only a user's action stops what the trigger follows."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from contextlib import suppress
from typing import Any

from airflow.triggers.base import BaseTrigger
from asgiref.sync import sync_to_async

from airflow_provider_raybatch.hooks.lookup import task_state

_STATE_WAITS = (0.5, 1.0, 2.0, 4.0, 6.0)
_KILL_TIMEOUT = 25.0  # below Airflow's own bound, [triggerer] on_kill_timeout, of 30 s
_SHORTEST_STOP = 5.0
_UNREADABLE = "unreadable"
_GOES_ON = {
    # Another triggerer has taken the trigger over.
    "deferred": "The task is still deferred, so %s goes on.",
    # No user action leads to this state; the next attempt adopts the job.
    "up_for_retry": "The task is going to be retried, so %s is left to its next attempt.",
}
"""States of the task in which what is followed goes on, and what the log then says."""


class KillableTrigger(BaseTrigger):
    """A trigger that stops what it follows when a user marks or clears the deferred task.

    :param cancel_on_kill: whether it does.
    """

    cancel_on_kill: bool = True
    _killing: asyncio.Task[None] | None = None  # the event loop itself keeps weak references only

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See Airflow's ``BaseTrigger``. Each argument is an attribute of its name."""
        kind = type(self)
        given = {
            name: parameter.kind
            for each in reversed(kind.__mro__)
            if issubclass(each, KillableTrigger) and "__init__" in vars(each)
            for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
        }
        names = [
            name for name in given if name != "self" and given[name] is not inspect.Parameter.VAR_KEYWORD
        ]
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in names}

    @property
    @abstractmethod
    def followed(self) -> str:
        """What it follows, for messages."""

    @abstractmethod
    async def stop_followed(self, seconds: float) -> None:
        """Stop it, within so many seconds."""

    @abstractmethod
    async def leave_in_doubt(self) -> None:
        """Do what is right where Airflow does not say whether a user ended the task."""

    async def on_kill(self) -> None:
        """Stop what is followed, if a user marked or cleared the task.

        Airflow also calls this when another triggerer has taken the trigger over; the task is then deferred
        or waits for a retry, and its job goes on. If the task's state can't be read, the job's lease is
        shortened: a follower renews it, and a job without one ends itself.

        Airflow's triggerer cancels a trigger once a second until it has ended
        (`TriggerRunner.cancel_triggers` in 3.3 and 3.4), also while this method runs. So the work runs in an
        asyncio task of its own, with a time limit.
        """
        if not self.cancel_on_kill:
            return
        self._killing = asyncio.create_task(self._stop_unless_deferred())
        while not self._killing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._killing)
        await self._killing

    async def _stop_unless_deferred(self) -> None:
        began = time.monotonic()
        state = await self._task_state()
        if state is not None and state in _GOES_ON:
            self.log.info(_GOES_ON[state], self.followed)
            return
        if state == _UNREADABLE:
            await self.leave_in_doubt()
            return
        self.log.info("The task is %s now; stopping %s.", state or "gone", self.followed)
        await self.stop_followed(max(_SHORTEST_STOP, _KILL_TIMEOUT - (time.monotonic() - began)))
        self.log.info("It has ended: %s.", self.followed)

    async def _task_state(self) -> str | None:
        """State of this trigger's task in Airflow; ``None`` when it was cleared or is gone."""
        ti = self.task_instance
        if ti is None:
            return None
        for wait in (*_STATE_WAITS, None):
            try:
                return await sync_to_async(task_state)(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
            except Exception as error:
                self.log.warning("Airflow did not return the task's state: %s", error)
            if wait is not None:
                await asyncio.sleep(wait)
        return _UNREADABLE
