# SPDX-License-Identifier: Apache-2.0
"""The record of a run in Airflow's task state store, under the run key.

It is written before anything is submitted. Its token is part of every submission id: a retry keeps the token
and so finds the job, a clear renews it.

The connection's seal key seals it, if there is one. The connection's token does not: it may be short enough
to guess, and the next attempt may have another one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined] # exported, but missing in the stub file
from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, parse
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.contract.submission import new_run_key, new_run_token
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
)

_SEALED = "sealed:"
_STORED = re.compile(rf"{_SEALED}[\w=-]*|(?:[0-9a-f]{{2}})+", re.ASCII)


def is_stored_key(value: object) -> bool:
    """Whether `value` looks as :func:`seal_run_key` makes it."""
    return isinstance(value, str) and _STORED.fullmatch(value) is not None


def seal_run_key(run_key: str, seal_key: str | None) -> str:
    """The run key as it is stored; readable without a seal key.

    :raises SpecError: the seal key is not a Fernet key.
    """
    if seal_key is None:
        return run_key
    from airflow_provider_raybatch.contract.secrets import fernet

    return _SEALED + str(fernet(seal_key).encrypt(run_key.encode()).decode())


def open_run_key(stored: str, seal_key: str | None) -> str | None:
    """The run key; ``None`` if `seal_key` did not seal it.

    :raises SpecError: the seal key is not a Fernet key.
    """
    if seal_key is None:
        return None if stored.startswith(_SEALED) else stored
    from cryptography.fernet import InvalidToken

    from airflow_provider_raybatch.contract.secrets import fernet

    try:
        return str(fernet(seal_key).decrypt(stored.removeprefix(_SEALED).encode()).decode())
    except InvalidToken:
        return None


_log = logging.getLogger(__name__)

KEY = "raybatch_run"

Value = TypeVar("Value")


class Store(Protocol):
    """The part of Airflow's task state store that is used here."""

    def get(self, key: str, default: Any = None) -> Any:
        """The stored value."""

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        """Store a value."""


class AttemptLike(Protocol):
    """The part of Airflow's task instance that tells a retry from a clear."""

    try_number: int
    max_tries: int


class RunRecord(ContractModel):
    """One run of a task, from its first attempt to a clear.

    :param max_tries: the task instance's when the run began. Airflow keeps it for a retry; a clear sets it to
        the number of tries so far plus the task's `retries`.
    :param try_number: the attempt that began the run, then the one that finished it.
    :param namespace: part of the task key, also after a clear, so that the task still owns its datasets.
    :param fingerprint: of the finished job, ``None`` before that.
    :param result: what the finished attempt returned.
    :param earlier: tokens of earlier runs whose jobs may still be there; ``None`` where the store has lost
        them.
    :param earlier_keys: as `key`, of those of them whose keys are known, by token.
    :param key: what the keys of its jobs are derived from, as :func:`seal_run_key` makes it.
    """

    token: str
    max_tries: int
    try_number: int
    namespace: str
    fingerprint: str | None = None
    result: Any = None
    earlier: tuple[str, ...] | None = ()
    earlier_keys: Mapping[str, str] = Field(default_factory=dict, repr=False)
    key: str = Field(repr=False)

    @field_validator("key")
    @classmethod
    def _as_stored(cls, key: str) -> str:
        if not is_stored_key(key):
            raise ValueError("it is not a run's key")
        return key

    def goes_on_in(self, attempt: AttemptLike) -> bool:
        """Whether `attempt` belongs to this run; else a new run begins with it.

        A clear raises `max_tries`, unless the task's `retries` were lowered by just as much before. Then it
        counts as a retry, and the next clear raises `max_tries`. Where the attempts of a finished run are
        counted anew, its DAG run was deleted, and a store outside of Airflow's database has kept the record.
        """
        counted_anew = self.fingerprint is not None and attempt.try_number <= self.try_number
        return self.max_tries == attempt.max_tries and not counted_anew


def recorded_run(store: Store) -> RunRecord | None:
    """The record, ``None`` where there is none.

    :raises RayBatchException: the store gives no answer, or something else than a record.
    """
    data = _asked(lambda: store.get(KEY))
    if data is None:
        return None
    try:
        return parse(RunRecord, data)
    except SpecError as error:
        raise RayBatchFailException(
            f"task_state_store: the value of {KEY!r} is not the record of a run "
            f"({str(error).rstrip('.')}); delete that key of the task, and clear the task.",
        ) from error


def current_run(
    store: Store,
    attempt: AttemptLike,
    namespace: Callable[[], str],
    seal_key: str | None = None,
    was_cleared: Callable[[RunRecord], bool] = lambda known: False,
    *,
    needs_key: bool = True,
) -> RunRecord:
    """The run that `attempt` belongs to; a new one is recorded.

    :param namespace: of a task without a record; called only for one.
    :param was_cleared: whether a user has cleared a run that seems to go on.
    :param needs_key: whether its jobs can be followed only with the run's key. If that can't be opened, a new
        run begins, which stops the job and takes its rows.
    :raises RayBatchException: the store gives no answer; a retry makes sense.
    :raises SpecError: the seal key is not a Fernet key.
    """
    known = recorded_run(store)
    if known is not None and known.goes_on_in(attempt) and not was_cleared(known):
        if known.fingerprint is not None or not needs_key or open_run_key(known.key, seal_key) is not None:
            return known
        _log.warning(
            "The connection's secret_seal_key does not open the run's key, so a new run begins; it stops the "
            "job of the one before, and goes on with its rows."
        )
    minted = RunRecord(
        token=new_run_token(attempt.try_number),
        max_tries=attempt.max_tries,
        try_number=attempt.try_number,
        namespace=namespace() if known is None else known.namespace,
        earlier=_tokens_before(known, attempt),
        earlier_keys={} if known is None else {**known.earlier_keys, known.token: known.key},
        key=seal_run_key(new_run_key(), seal_key),
    )
    _write(store, minted)
    if recorded_run(store) != minted:
        raise _unreachable("it doesn't give back what was written")
    return minted


def check_current(store: Store, token: str) -> None:
    """Check, right before a job is submitted, that Airflow has not given this attempt up.

    A process that was frozen may go on after a clear. It then finds no record, or that of the next run.

    :raises RayBatchException: Airflow has given this attempt up; or the store gives no answer.
    """
    known = recorded_run(store)
    if known is None or known.token != token:
        raise RayBatchException(
            "task_state_store: Airflow has given this attempt up, so it submits nothing; the task's next "
            "attempt goes on.",
            FailureClass.CANCELLED,
        )


def record_result(
    store: Store, token: str, attempt: AttemptLike, fingerprint: str | None, result: Any
) -> None:
    """Record what the run returned, in case that something fails after this and a retry follows.

    :raises RayBatchException: the store gives no answer; a retry then asks the cluster for the job.
    """
    known = recorded_run(store)
    if known is not None and known.token == token:  # else a clear has begun the next run meanwhile
        finished = {"try_number": attempt.try_number, "fingerprint": fingerprint, "result": result}
        _write(store, known.model_copy(update=finished))


def forget_earlier(store: Store, token: str) -> None:
    """Record that the jobs of earlier runs have ended; raises as :func:`record_result`."""
    known = recorded_run(store)
    if known is not None and known.token == token:
        _write(store, known.model_copy(update={"earlier": (), "earlier_keys": {}}))


def _tokens_before(known: RunRecord | None, attempt: AttemptLike) -> tuple[str, ...] | None:
    if known is None:
        # Airflow 3.4 and newer drop the record when the task is cleared.
        return () if attempt.try_number <= 1 else None
    return None if known.earlier is None else (*known.earlier, known.token)


def _write(store: Store, record: RunRecord) -> None:
    _asked(lambda: store.set(KEY, record.model_dump(mode="json"), retention=NEVER_EXPIRE))


def _asked(call: Callable[[], Value]) -> Value:
    try:
        return call()
    except Exception as error:
        raise _unreachable(plain_reason(error)) from error


def _unreachable(why: str) -> RayBatchException:
    return RayBatchUnavailableException(
        f"task_state_store: Airflow's store gave no usable answer ({why}); a retry asks again.",
    )
