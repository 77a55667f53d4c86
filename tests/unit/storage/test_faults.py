# SPDX-License-Identifier: Apache-2.0
"""S3 answers 500 or 503, late, partly or never, or loses an answer: each call counts once, none hangs."""

from __future__ import annotations

import dataclasses
import io
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage import errors
from airflow_provider_raybatch.storage.errors import StorageError, TakenError
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import OF_ANY_CALL, Fault, FaultyS3, after, first
from tests.support.s3_server import S3Server

pytestmark = pytest.mark.slow

LARGE = bytes(range(256)) * 4 * 1024 * 6
"""Two parts of an upload."""


@pytest.fixture(scope="module")
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def healthy(s3_server: S3Server, bucket: str) -> S3Folder:
    """A folder with some files, reached without the proxy."""
    place = S3Folder(bucket, f"out/{uuid.uuid4().hex}", s3_server.credentials)
    place.write("known", b"known")
    place.write("large", LARGE)
    return place


@pytest.fixture
def place(healthy: S3Folder, proxy: FaultyS3) -> S3Folder:
    """The same folder through the proxy."""
    return S3Folder(healthy.bucket, healthy.prefix, proxy.api.credentials)


def _read_large(place: S3Folder) -> bytes:
    with place.open("large") as stream:
        return stream.read()


OPERATIONS: dict[str, tuple[Callable[[S3Folder], Any], Any]] = {
    "list": (lambda place: [entry.path for entry in place.list()], ["known", "large"]),
    "head": (lambda place: place.head("known").size, 5),
    "head of nothing": (lambda place: place.head("nothing"), None),
    "read": (lambda place: place.read("large"), LARGE),
    "open": (_read_large, LARGE),
    "write": (lambda place: (place.write("x", b"1"), place.read("x"))[1], b"1"),
    "write a large one": (lambda place: (place.write("x", LARGE), place.read("x"))[1], LARGE),
    "create": (lambda place: (place.create("x", b"1"), place.read("x"))[1], b"1"),
    "delete": (lambda place: (place.delete(["known", "large"]), place.list())[1], []),
}


@pytest.mark.parametrize("fault", OF_ANY_CALL)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_survives_every_fault(
    place: S3Folder, proxy: FaultyS3, operation: str, fault: Fault
) -> None:
    do, expected = OPERATIONS[operation]
    proxy.choose = first(fault, 2)
    assert do(place) == expected
    assert proxy.faults[fault] >= 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT_ANSWER, Fault.ERROR_500])
def test_a_file_is_uploaded_again_from_its_beginning(
    place: S3Folder, proxy: FaultyS3, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a call that is made again as a whole, since obstore itself gives up."""
    monkeypatch.setattr(errors, "RETRY_LIMITS", dataclasses.replace(errors.RETRY_LIMITS, repeats=0))
    proxy.choose = lambda call: fault if "partNumber" in call.target and not proxy.faults else None
    place.write("x", io.BytesIO(2 * LARGE))
    assert proxy.faults == {fault: 1}
    assert place.read("x") == 2 * LARGE


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT_ANSWER, Fault.ERROR_500])
def test_the_last_call_of_a_large_upload_may_be_lost(place: S3Folder, proxy: FaultyS3, fault: Fault) -> None:
    proxy.choose = lambda call: (
        fault if call.method == "POST" and "uploadId" in call.target and not proxy.faults else None
    )
    place.write("x", LARGE)
    assert proxy.faults == {fault: 1}
    assert place.read("x") == LARGE


def test_half_an_upload_is_not_seen(
    healthy: S3Folder, place: S3Folder, proxy: FaultyS3, once: errors.RetryLimits
) -> None:
    proxy.choose = lambda call: Fault.ERROR_503 if "partNumber=2" in call.target else None
    with pytest.raises(StorageError):
        place.write("x", LARGE)
    assert healthy.head("x") is None
    healthy.create("x", b"whole")
    assert healthy.read("x") == b"whole"


def test_no_call_takes_longer_than_documented() -> None:
    limits = errors.RetryLimits()
    assert limits.whole + limits.repeat + limits.answer == 300
    assert limits.connect <= limits.answer <= limits.repeat <= limits.whole


class TestCreate:
    @pytest.mark.parametrize("fault", Fault)
    def test_object_created_by_another_is_not_ours(
        self, healthy: S3Folder, place: S3Folder, proxy: FaultyS3, fault: Fault
    ) -> None:
        healthy.create("x", b"another's")
        proxy.choose = first(fault, 2)
        with pytest.raises(TakenError):
            place.create("x", b"mine")
        assert healthy.read("x") == b"another's"

    def test_conflict_without_a_winner_is_retried(self, place: S3Folder, proxy: FaultyS3) -> None:
        proxy.choose = first(Fault.CONFLICT, 3)
        place.create("x", b"mine")
        assert place.read("x") == b"mine"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("fault", [Fault.ERROR_503, Fault.SILENT, Fault.CUT_REQUEST])
def test_a_store_that_is_down_is_one_sentence(
    place: S3Folder, proxy: FaultyS3, brief: errors.RetryLimits, operation: str, fault: Fault
) -> None:
    proxy.choose = after(0, fault)
    with pytest.raises(StorageError) as caught:
        OPERATIONS[operation][0](place)
    assert caught.value.failure_class is FailureClass.STORAGE
    text = str(caught.value)
    assert text.startswith(place.uri)
    assert text.endswith(
        "; check that the store is up and can be reached from the cluster: a retry of the task goes on with "
        "the rows that are finished."
    )
    assert "\n" not in text


def test_a_read_that_fails_later_on_is_a_storage_error(
    place: S3Folder, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "RETRY_LIMITS", errors.RetryLimits(whole=0, repeat=0, repeats=0))
    with place.open("large") as stream:
        proxy.choose = after(0, Fault.ERROR_500)
        with pytest.raises(StorageError, match="InternalError") as caught:
            stream.read()
    assert caught.value.failure_class is FailureClass.STORAGE


@pytest.mark.parametrize("code", ["InvalidArgument", "AccessDenied", "NoSuchBucket"])
def test_permanent_errors_are_not_retried(
    place: S3Folder, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    from tests.support import faulty_s3

    monkeypatch.setitem(faulty_s3._CODES, Fault.CONFLICT, (400, code))
    proxy.choose = after(0, Fault.CONFLICT)
    with pytest.raises(StorageError):
        place.write("x", b"")
    assert len(proxy.calls) == 1
