# SPDX-License-Identifier: Apache-2.0
"""How a batch inference can end badly, and what follows from each way."""

from __future__ import annotations

import re
from copy import copy
from enum import Enum

from airflow_provider_raybatch.contract.text import clean, count_of


class FailureClass(str, Enum):
    """Why a job did not deliver. The class, never the text, decides whether a retry makes sense."""

    USER_ERROR = "user_error"
    """The spec, the source, the model, a credential or the destination is wrong; a retry would fail alike."""
    UNSCHEDULABLE = "unschedulable"
    """The cluster can never hold what the job asks for."""
    TOO_MANY_ERRORS = "too_many_errors"
    """More rows failed than `max_error_fraction` or `max_errors` allows."""
    POISON_ROW = "poison_row"
    """Rows kill the engine whenever they are tried, more of them than may fail."""
    OUT_OF_MEMORY = "out_of_memory"
    """The engine, a worker or the driver ran out of memory."""
    ENGINE_DEAD = "engine_dead"
    """The engine died more often in a row than `max_restarts` allows."""
    NODE_LOST = "node_lost"
    """A node of the cluster, with the driver on it, went away."""
    CLUSTER_LOST = "cluster_lost"
    """The head restarted and forgot the job (another Ray session answers)."""
    CLUSTER_UNREACHABLE = "cluster_unreachable"
    """The Jobs API gave no answer for longer than is tolerated, or Airflow's task state store gave none."""
    STORAGE = "storage"
    """Reading the source or writing the destination failed after retries, or a disk of a node is full."""
    STALLED = "stalled"
    """Nothing moved for `no_progress_timeout`, or nodes did not come within `cluster_wait`."""
    LIMIT_REACHED = "limit_reached"
    """The job has used up `max_tokens_total`, `max_gpu_hours` or `max_cost`; the finished rows are kept."""
    TIMEOUT = "timeout"
    """The job's deadline passed."""
    CANCELLED = "cancelled"
    """A user stopped or deleted the job on the cluster."""
    SUPERSEDED = "superseded"
    """A newer submission claimed the destination."""
    INTERNAL = "internal"
    """Anything else: most likely a defect in the provider or in what it runs on."""

    @property
    def retryable(self) -> bool:
        """Whether another attempt of the same task can end differently."""
        return self not in _FINAL


_FINAL = frozenset({
    FailureClass.USER_ERROR,
    FailureClass.UNSCHEDULABLE,
    FailureClass.TOO_MANY_ERRORS,
    FailureClass.SUPERSEDED,
    FailureClass.LIMIT_REACHED,
    FailureClass.POISON_ROW,
})


_QUOTED = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'(?!\w)|"(?:[^"\\]|\\.)*"|['"].*)""", re.DOTALL)
"""A value in quotes; one without an end was cut off."""
_OF_ROW = re.compile(r"\brow \d+: .*", re.DOTALL)
"""Why a row failed, as an example of many, and what follows."""


def without_values(text: str) -> str:
    """A sentence without the values that it quotes, such as an answer that is not JSON."""
    return _QUOTED.sub("'...'", text)


def without_examples(failure: str) -> str:
    """Why a job failed, without the values that its examples of failed rows quote."""
    return _OF_ROW.sub(lambda found: without_values(found[0]), failure)


def rows_kept(kept: int, total: int, failure_class: FailureClass, clear_keeps: bool = True) -> str:
    """Which of `total` rows have an answer on disk after a failure, and what takes them.

    :param clear_keeps: whether a clear of the task does, too; not with ``on_clear="regenerate"``.
    """
    if not kept:
        return "no row was finished"
    said = f"{kept:,} of {count_of(total, 'row')} {'is' if kept == 1 else 'are'} kept"
    if failure_class.retryable:
        return f"{said}, and the next attempt goes on from there"
    return f"{said}, and a clear of the task goes on from there" if clear_keeps else said


class RaybatchError(Exception):
    """Root of all errors of this package.

    :param message: one sentence that names the field, the value and the remedy. Parts of it may come from a
        cluster, so it is made fit for logs and databases.
    :param public: the same without what rows hold, for a job with ``report_samples=0``; by default `message`
        itself, which then must not quote rows.
    """

    failure_class: FailureClass = FailureClass.INTERNAL
    _public: str | None = None

    def __init__(
        self, message: str, failure_class: FailureClass | None = None, *, public: str | None = None
    ) -> None:
        super().__init__(clean(message))
        if failure_class is not None:
            self.failure_class = failure_class
        if public is not None:
            self._public = clean(public)

    @property
    def public(self) -> str:
        """The message without what rows hold."""
        return str(self) if self._public is None else self._public

    def reworded(self, message: str) -> RaybatchError:
        """The same error, of the same class, with another message."""
        made = copy(self)
        made.args = (message,)
        return made


class SpecError(RaybatchError, ValueError):
    """An argument of the job is wrong, alone or together with others; found without looking at any data."""

    failure_class = FailureClass.USER_ERROR


class PreflightError(RaybatchError):
    """The job can't work as asked, found out before any engine started."""

    failure_class = FailureClass.USER_ERROR
