# SPDX-License-Identifier: Apache-2.0
"""Limits of a user, by Airflow's settings: requests at this process, stored bytes and batches."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from airflow.sdk.configuration import conf

from airflow_provider_raybatch.batch_api.server.new_batch import LONGEST_WINDOW
from airflow_provider_raybatch.batch_api.server.objects import come_back
from airflow_provider_raybatch.batch_api.store.ids import ListedBatch, ListedFile
from airflow_provider_raybatch.batch_api.store.settings import SECTION
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.batch_api.store.validation import STRICT_LIMITS, FileLimits
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.storage.file import in_order

_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class ApiLimits:
    """Limits of the server; each model's own come on top. ``None`` means no limit.

    :param strict: accept what OpenAI accepts: 50,000 lines, 200 MB, and a window of 24 hours.
    :param max_file_bytes: of one upload.
    :param max_user_bytes: of all files of a user, with those that batches have made.
    :param requests_per_minute: of a user, at one process of the API server.
    :param batches_per_hour: that a user creates.
    :param unfinished_batches: of a user at once.
    """

    strict: bool = False
    max_file_bytes: int | None = 2_000_000_000
    max_user_bytes: int | None = 50_000_000_000
    requests_per_minute: int | None = 3000
    batches_per_hour: int | None = 2000
    unfinished_batches: int | None = 1000


def api_limits() -> ApiLimits:
    """The limits, as they are set.

    :raises SpecError: a setting can't be used; one sentence that names it.
    """
    given = str(conf.get(SECTION, "batch_api_strict", fallback="") or "False").strip()
    strict = given.lower() in {"true", "t", "1"}
    if not strict and given.lower() not in {"false", "f", "0"}:
        raise SpecError(
            f"[{SECTION}] batch_api_strict: {shown(given)} is not True or False; set one of them."
        )
    defaults = vars(ApiLimits())
    limits = {name: _limit(f"batch_api_{name}", defaults[name]) for name in defaults if name != "strict"}
    if strict:
        file_bytes = FileLimits(max_bytes=limits["max_file_bytes"])
        limits["max_file_bytes"] = file_bytes.within(STRICT_LIMITS).max_bytes
    return ApiLimits(strict=strict, **limits)


def _limit(name: str, default: int | None) -> int | None:
    given = str(conf.get(SECTION, name, fallback="") or "").strip().replace("_", "")
    if not given:
        return default
    if not _NUMBER.fullmatch(given):
        raise SpecError(
            f"[{SECTION}] {name}: {shown(given)} is not a whole number; set one, or 0 for no limit."
        )
    return int(given) or None


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
