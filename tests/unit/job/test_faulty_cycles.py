# SPDX-License-Identifier: Apache-2.0
"""The whole job on a failing store, from preflight to the clean-up, with a reader beside it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.report import Report
from airflow_provider_raybatch.storage import errors
from airflow_provider_raybatch.storage.errors import RetryLimits, StorageError
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import ONCE, Fault, FaultyS3, after, by_seed
from tests.support.published import ROWS, published
from tests.support.s3_server import S3Server
from tests.support.whole_job import attempt, numbered, without_cluster

pytestmark = pytest.mark.slow
thorough = pytest.mark.thorough("more faults at any call of a job; one kind runs always")


@contextlib.contextmanager
def reading(folder: Folder) -> Iterator[None]:
    """Read the dataset all the time; a reader must find nothing or all of it."""
    over, wrong = threading.Event(), []

    def read() -> None:
        while not over.wait(0.1):
            try:
                published(folder)
            except BaseException as error:  # any error must fail the test
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
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The source of a job that needs no cluster."""
    without_cluster(monkeypatch)
    return numbered(tmp_path / "in.jsonl", ROWS)


@pytest.fixture
def healthy(s3_server: S3Server) -> S3Folder:
    return S3Folder(s3_server.new_bucket(), "out", s3_server.credentials)


@pytest.mark.parametrize(
    ("share", "seeds"),
    [(0.05, range(7)), pytest.param(0.3, range(7, 10), marks=thorough)],
)
def test_a_store_that_fails_often_costs_time_only(
    healthy: S3Folder, proxy: FaultyS3, source: str, share: float, seeds: range
) -> None:
    for seed in seeds:
        place = S3Folder(healthy.bucket, f"out{seed}", proxy.api.credentials)
        direct = S3Folder(healthy.bucket, f"out{seed}", healthy.credentials)
        proxy.choose = by_seed(seed, share)
        with reading(direct):
            summary = attempt(place, 0, source)
        manifest = published(direct)
        assert manifest is not None
        assert manifest.summary() == summary
        page = str(summary.report_uri).removeprefix(f"{place.uri}/")
        assert parse(Report, direct.read(page.replace(".html", ".json"))).rows == ROWS
        assert direct.head(page) is not None
    assert sum(proxy.faults.values()) >= len(seeds)


@pytest.mark.parametrize(
    ("fault", "step"),
    [(Fault.ERROR_500, 9), pytest.param(Fault.LOST, 5, marks=thorough)],
)
def test_outage_at_any_call_leaves_all_or_nothing(
    healthy: S3Folder, proxy: FaultyS3, source: str, monkeypatch: pytest.MonkeyPatch, fault: Fault, step: int
) -> None:
    monkeypatch.setattr(errors, "RETRY_LIMITS", ONCE)
    attempt(S3Folder(healthy.bucket, "whole", proxy.api.credentials), 0, source)
    calls = len(proxy.calls)
    for number in range(0, calls, step):
        place = S3Folder(healthy.bucket, f"out{number}", proxy.api.credentials)
        direct = S3Folder(healthy.bucket, f"out{number}", healthy.credentials)
        begins = len(proxy.calls)
        proxy.choose = after(begins + number, fault)
        with reading(direct):
            with contextlib.suppress(StorageError):  # an error after the commit is no failure
                attempt(place, 0, source)
            assert len(proxy.calls) > begins + number, "it ended before its fault"
            before = published(direct)
            attempt(direct, 1, source)
        retried = published(direct)
        assert retried is not None
        assert parse(BatchManifest, direct.read("manifest.json")) == retried
        assert before is None or before == retried
        assert generated(direct) == ROWS


def generated(folder: Folder) -> int:
    """Return the number of rows that were paid for, over all attempts."""
    names = [entry.path for entry in folder.list("_raybatch/parts") if entry.path.endswith(".parquet")]
    return sum(int(name.split(".")[-3]) for name in names)


def test_the_end_of_a_store_is_one_sentence(
    healthy: S3Folder, proxy: FaultyS3, once: RetryLimits, source: str
) -> None:
    proxy.choose = after(4, Fault.ERROR_503)
    with pytest.raises(
        StorageError, match=r"SlowDown.*the store is up.*a retry of the task goes on"
    ) as caught:
        attempt(S3Folder(healthy.bucket, "out", proxy.api.credentials), 0, source)
    assert caught.value.failure_class is FailureClass.STORAGE
