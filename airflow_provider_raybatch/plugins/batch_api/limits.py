# SPDX-License-Identifier: Apache-2.0
"""Limits of a user: requests at this process, and stored bytes and batches by the user's index."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from airflow_provider_raybatch.batches.store import BatchStore
from airflow_provider_raybatch.contract.batch_api.ids import ListedBatch, ListedFile
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.plugins.batch_api.errors import come_back
from airflow_provider_raybatch.plugins.batch_api.new_batch import LONGEST_WINDOW
from airflow_provider_raybatch.plugins.batch_api.settings import ApiLimits
from airflow_provider_raybatch.storage.in_order import in_order

_HOUR = 3600.0
_LEEWAY = 24 * _HOUR
"""After its window a batch has time to publish what is finished."""
_MOST_USERS = 10_000
"""Buckets that are kept; whoever has been away for a minute has a full one anyway."""


class RequestRate:
    """A bucket of tokens for each user, at this process alone.

    :param per_minute: tokens that a bucket holds, and gets in a minute; ``None`` for no limit.
    :param clock: seconds, monotonic.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, user: str) -> None:
        """Count a request.

        :raises OpenAiError: 429, the bucket is empty.
        """
        if self._per_minute is None:
            return
        per_second = self._per_minute / 60
        with self._lock:
            now = self._clock()
            tokens, since = self._buckets.pop(user, (float(self._per_minute), now))
            tokens = min(tokens + (now - since) * per_second, self._per_minute)
            self._buckets[user] = (tokens - 1 if tokens >= 1 else tokens, now)
            if len(self._buckets) > _MOST_USERS:
                self._buckets.popitem(last=False)
        if tokens < 1:
            wait = math.ceil((1 - tokens) / per_second)
            sent = count_of(self._per_minute, "request")
            raise come_back(429, f"You have sent more than {sent} in a minute; wait {wait} s.", wait)


def free_bytes(files: Iterable[ListedFile], limits: ApiLimits, now: float) -> int | None:
    """What a user may still store; ``None`` without a limit.

    :param files: all of the user; those that have expired don't count.
    """
    if limits.max_user_bytes is None:
        return None
    return limits.max_user_bytes - sum(one.bytes for one in files if one.expires_at > now)


def check_new_batch(store: BatchStore, owner: str, limits: ApiLimits) -> None:
    """Check that a user may create another batch now.

    :raises OpenAiError: 429, too many were created in the last hour, or have not ended.
    """
    if limits.batches_per_hour is None and limits.unfinished_batches is None:
        return
    # Of a user who has created a hundred thousand, those that have not ended are among the newest.
    most = max(limits.batches_per_hour or 0, 2 * (limits.unfinished_batches or 0))
    batches = store.batches(owner, most)
    _check_rate(batches, limits.batches_per_hour, time.time())
    if limits.unfinished_batches is None or len(batches) < limits.unfinished_batches:
        return

    latest = time.time() - LONGEST_WINDOW - _LEEWAY  # older ones have ended, or their Airflow can't end them
    maybe_open = [one for one in batches if one.created_at > latest and not store.is_known_over(one.id)]
    too_much = len(maybe_open) - limits.unfinished_batches + 1

    def is_over(batch: ListedBatch) -> bool:
        state = store.state(batch.id)
        return state is None or state.is_over

    # Each look is a listing, so no more are made than are needed to know whether there is room.
    unfinished = 0
    looks = in_order(is_over, reversed(maybe_open))
    while too_much > 0:
        if unfinished >= limits.unfinished_batches:
            raise come_back(
                429,
                f"You have {count_of(unfinished, 'batch', 'batches')} that have not ended, the most at once; "
                "wait for one of them, or cancel one.",
                60,
            )
        found = next(looks)
        too_much -= found
        unfinished += not found


def _check_rate(batches: list[ListedBatch], most: int | None, now: float) -> None:
    if most is None or len(batches) < most:
        return
    oldest = batches[most - 1].created_at  # they are listed newest first
    if oldest > now - _HOUR:
        raise come_back(
            429,
            f"You have created {count_of(most, 'batch', 'batches')} within an hour, the most there may be.",
            math.ceil(oldest + _HOUR - now),
        )
