# SPDX-License-Identifier: Apache-2.0
"""A job's way through a store that fails: claim, parts, publish, commit, and a reader who never sleeps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.destination.journal import Journal
from airflow_provider_raybatch.job.destination.newest import renew_copy
from airflow_provider_raybatch.job.ledger.ledger import look_back
from airflow_provider_raybatch.job.storage import patience
from airflow_provider_raybatch.job.storage.errors import StorageError
from airflow_provider_raybatch.job.storage.folder import Folder, S3Folder
from airflow_provider_raybatch.job.storage.patience import Patience

from ...faulty_s3 import BRIEF, Fault, FaultyS3, after, by_seed
from ...s3_server import S3Server
from ..specs import submitted
from .publishing import commit_only, part, rows_of

pytestmark = pytest.mark.slow

ROWS = 12
RUN = "_raybatch/parts/task/run"


def attempt(folder: Folder, number: int) -> BatchManifest:
    """What a submission does, without an engine."""
    spec = submitted(number, destination={"uri": folder.uri, "rows_per_part": 5})
    journal = Journal(folder, spec.submission, take_over=False)
    if (known := journal.claim()) is not None:
        renew_copy(folder, journal)
        return known
    earlier = look_back(folder, RUN, ROWS)
    written = [
        part(folder, [{"id": first}, {"id": first + 1}, {"id": first + 2}], first=first, submission=number)
        for first in range(0, ROWS, 3)
        if not earlier.good[first]
    ]
    return commit_only(folder, journal, [*earlier.parts, *written], ROWS, spec)


def published(folder: Folder) -> BatchManifest | None:
    """What a reader finds, all its files read and compared with the manifest."""
    last = Journal(folder, submitted().submission, take_over=False).last()
    if last is None or last.published is None:
        return None
    manifest = parse(BatchManifest, folder.read(last.published.manifest))
    assert [row["id"] for row in rows_of(folder, manifest)] == list(range(ROWS))
    return manifest


@contextlib.contextmanager
def reading(folder: Folder) -> Iterator[None]:
    """Somebody reads the dataset all the time, and finds nothing or all of it."""
    over, wrong = threading.Event(), []

    def read() -> None:
        while not over.wait(0.1):
            try:
                published(folder)
            except StorageError:
                continue  # this machine is too slow for a store that is given up so soon
            except BaseException as error:  # whatever it is, the test has to fail with it
                wrong.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join()
    assert wrong == []


@pytest.fixture
def healthy(s3_server: S3Server) -> S3Folder:
    return S3Folder(s3_server.new_bucket(), "out", s3_server.credentials)


@pytest.mark.parametrize(("share", "seeds"), [(0.05, range(7)), (0.3, range(7, 10))])
def test_a_store_that_fails_often_costs_time_only(
    healthy: S3Folder, proxy: FaultyS3, share: float, seeds: range
) -> None:
    for seed in seeds:
        place = S3Folder(healthy.bucket, f"out{seed}", proxy.api.credentials)
        direct = S3Folder(healthy.bucket, f"out{seed}", healthy.credentials)
        proxy.choose = by_seed(seed, share)
        with reading(direct):
            manifest = attempt(place, 0)
        assert published(direct) == manifest
    assert sum(proxy.faults.values()) >= len(seeds)


@pytest.mark.parametrize(("fault", "step"), [(Fault.ERROR_500, 9), (Fault.LOST, 5)])
def test_a_store_that_goes_down_at_any_call_leaves_all_or_nothing(
    healthy: S3Folder, proxy: FaultyS3, fault: Fault, step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Calls that outlast a short limit are repeated, and would be counted twice.
        patch.setattr(patience, "PATIENCE", Patience())
        attempt(S3Folder(healthy.bucket, "whole", proxy.api.credentials), 0)
    calls = len(proxy.calls)
    for number in range(0, calls, step):
        place = S3Folder(healthy.bucket, f"out{number}", proxy.api.credentials)
        direct = S3Folder(healthy.bucket, f"out{number}", healthy.credentials)
        proxy.choose = after(len(proxy.calls) + number, fault)
        with reading(direct):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(patience, "PATIENCE", BRIEF)
                with pytest.raises(StorageError):
                    attempt(place, 0)
            before = published(direct)
            retried = attempt(direct, 1)
        assert published(direct) == retried
        assert parse(BatchManifest, direct.read("manifest.json")) == retried
        assert before is None or before == retried


def test_the_end_of_a_store_is_one_sentence(healthy: S3Folder, proxy: FaultyS3, brief: Patience) -> None:
    proxy.choose = after(4, Fault.ERROR_503)
    with pytest.raises(
        StorageError, match=r"503 Service.*the store is up.*a retry of the task goes on"
    ) as caught:
        attempt(S3Folder(healthy.bucket, "out", proxy.api.credentials), 0)
    assert caught.value.failure_class is FailureClass.STORAGE
