# SPDX-License-Identifier: Apache-2.0
"""How long S3 is waited for, and what is tried again.

obstore repeats a request that got a 5xx, 429 or no answer, but neither creations nor deletions whose answer
was lost, nor listings that were cut off: it can't know whether they may be repeated. All calls here may, so
they are made again as a whole (for creations, see :meth:`S3Folder.create`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.storage.errors import may_recover, s3_error

T = TypeVar("T")


@dataclass(frozen=True)
class RetryLimits:
    """In seconds. A call ends at the latest after `whole` + `repeat` + `answer`: 5 minutes.

    :param connect: for a connection to be made; longer than a lost SYN packet and its repetition take.
    :param answer: for one request, until the answer's last byte. Requests carry at most 8 MiB, so this asks
        for 140 kB/s of each.
    :param repeat: obstore repeats a request for so long, and at most `repeats` times, with its first
        signature, which S3 accepts for 15 minutes.
    :param whole: after that no new attempt is made. Longer than most hiccups of S3, and cheap against the
        start of an engine, which a failed job would have to repeat.
    :param first_pause: before the second attempt. Pauses double, with jitter, up to `longest_pause`.
    """

    connect: float = 10
    answer: float = 60
    repeat: float = 60
    repeats: int = 10
    whole: float = 180
    first_pause: float = 0.1
    longest_pause: float = 10


RETRY_LIMITS = RetryLimits()


def with_retries(attempt: Callable[[], T], verb: str, uri: str) -> T:
    """Attempt a call until it works, or can never work, or the time for it is over.

    :param attempt: may be repeated, whether or not it was done before.
    :param verb: what can't be done with `uri`, for the message.
    :raises StorageError: one sentence.
    """
    began, pause = time.monotonic(), RETRY_LIMITS.first_pause
    while True:
        try:
            return attempt()
        except RaybatchError:
            raise
        except Exception as error:
            tried = time.monotonic() - began
            if not may_recover(error):
                raise s3_error(verb, uri, error) from error
            if tried + pause > RETRY_LIMITS.whole:
                raise s3_error(verb, uri, error, tried) from error
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, RETRY_LIMITS.longest_pause)
