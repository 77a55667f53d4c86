# SPDX-License-Identifier: Apache-2.0
"""The run token: what all attempts of one run of a task share, and a clear renews.

It is minted in the task state store before anything is submitted, so that an attempt that follows a dead one
finds it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined] # exported, but missing in the stub file

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException, airflow_exception

KEY = "raybatch_run"

Value = TypeVar("Value")


class Store(Protocol):
    """The part of Airflow's task state store that is used here."""

    def get(self, key: str, default: Any = None) -> Any:
        """The stored value."""

    def set(self, key: str, value: Any, *, retention: Any = None) -> None:
        """Store a value."""


def run_token(store: Store, max_tries: int) -> str:
    """The token of the task's current run: the stored one, or a new one where this is a new run.

    A new run is the first one, one whose `max_tries` differs from the record's (Airflow raises it when a task
    is cleared), and one whose token is on record as succeeded (a clear that left `max_tries` as it was).

    :raises RayBatchException: the store gives no answer; nothing was submitted, and a retry makes sense.
    """
    record = _asked(lambda: store.get(KEY))
    if isinstance(record, dict) and record.get("max_tries") == max_tries and not record.get("succeeded"):
        return str(record["token"])
    token = str(uuid.uuid4())
    minted = {"token": token, "max_tries": max_tries, "succeeded": False}
    _asked(lambda: store.set(KEY, minted, retention=NEVER_EXPIRE))
    if _asked(lambda: store.get(KEY)) != minted:
        raise _unreachable("it doesn't give back what was written")
    return token


def recorded_token(store: Store) -> str | None:
    """The token on record, ``None`` where nothing is.

    :raises RayBatchException: the store gives no answer.
    """
    record = _asked(lambda: store.get(KEY))
    return str(record["token"]) if isinstance(record, dict) else None


def mark_succeeded(store: Store, token: str, max_tries: int) -> None:
    """Put on record that this token's dataset was handed over: if the task starts again, somebody cleared it.

    :raises RayBatchException: the store gives no answer; the retry finds the finished job and ends at once.
    """
    _asked(
        lambda: store.set(
            KEY, {"token": token, "max_tries": max_tries, "succeeded": True}, retention=NEVER_EXPIRE
        )
    )


def _asked(call: Callable[[], Value]) -> Value:
    try:
        return call()
    except Exception as error:
        raise _unreachable(f"{type(error).__name__}: {error}") from error


def _unreachable(why: str) -> RayBatchException:
    return airflow_exception(
        FailureClass.CLUSTER_UNREACHABLE,
        f"task_state_store: Airflow's store gave no usable answer ({why}); a retry asks again.",
    )
