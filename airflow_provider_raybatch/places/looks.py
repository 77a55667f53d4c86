# SPDX-License-Identifier: Apache-2.0
"""When the cluster of a job is looked at while the job is followed."""

from __future__ import annotations

import time

from airflow_provider_raybatch.cluster.follow.outcome import Verdict

_LOOK_SECONDS = 30.0
_ASK_SECONDS = 10.0
PATIENCE = 20.0
"""Seconds for one look, since the next poll of the job waits for it."""
_LOST = frozenset({"lost", "deleted", "unreachable"})


def is_silent(verdict: Verdict) -> bool:
    """Whether the head has not answered lately."""
    return verdict.state.unreachable_since is not None


class Looks:
    """Says after each poll of the job whether a look is due: now and then, and when the job is lost."""

    def __init__(self) -> None:
        self._next = {False: 0.0, True: 0.0}  # when it is looked at again, by whether the head is silent

    def due(self, verdict: Verdict) -> bool:
        """Whether to look now; if so, the next look is some seconds later."""
        outcome, silent = verdict.outcome, is_silent(verdict)
        if outcome is not None and outcome.state not in _LOST:
            return False
        now = time.monotonic()
        if outcome is None and now < self._next[silent]:
            return False
        self._next[silent] = now + (_ASK_SECONDS if silent else _LOOK_SECONDS)
        return True
