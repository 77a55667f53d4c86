# SPDX-License-Identifier: Apache-2.0
"""A job that has lost its destination to another submission stops paying before its commit."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from airflow_provider_raybatch.contract.submission import new_run_token
from airflow_provider_raybatch.job.output.journal import Journal, SupersededError
from airflow_provider_raybatch.job.phases.generating import ClaimWatch
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import folder
from tests.support.specs import submitted


class CheckTurns:
    """Allows one check for each call of :meth:`next`, which waits for the end of that check."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._wanted, self._done = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> None:
        self._wanted.acquire()
        try:
            self._check()
        finally:
            self._done.release()

    def next(self) -> None:
        self._wanted.release()
        assert self._done.acquire(timeout=60)


def wait_for_the_end_of(watch: ClaimWatch) -> None:
    for thread in threading.enumerate():
        if thread.name == "raybatch-claim":
            thread.join(60)
            assert not thread.is_alive()


def test_a_claim_of_a_newer_run_ends_the_older_ones_job(tmp_path) -> None:
    older, newer = (submitted(number, token=new_run_token(number + 1)).submission for number in (0, 1))
    mine = Journal(folder(str(tmp_path)), older, False)
    mine.claim()
    checks = CheckTurns(mine.check)
    watch = ClaimWatch(checks, interval=0)
    with watch.looking():
        checks.next()
        watch.check()
        Journal(folder(str(tmp_path)), newer, False).claim()
        checks.next()
        wait_for_the_end_of(watch)
    for _ in range(2):
        with pytest.raises(SupersededError, match="was claimed by"):
            watch.check()


def test_a_store_that_gives_no_answer_ends_no_job() -> None:
    def away() -> None:
        raise StorageError("destination: no answer")

    checks = CheckTurns(away)
    watch = ClaimWatch(checks, interval=0)
    with watch.looking():
        checks.next()
        checks.next()
        assert watch.check() is None
    checks.next()
    wait_for_the_end_of(watch)
