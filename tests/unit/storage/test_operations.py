# SPDX-License-Identifier: Apache-2.0
"""Conditional writes are tried first; the first names of a large folder; files behind links."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.storage.errors import RetryLimits, StorageError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.operations import check_conditional_writes, first_names
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import Fault, FaultyS3, first
from tests.support.poor_s3 import IF_MATCH, IF_NONE_MATCH, PoorStore
from tests.support.s3_server import S3Server, serving

HEADERS = {"If-None-Match": IF_NONE_MATCH, "If-Match": IF_MATCH}
KNOWN = ("_raybatch/journal/00000001.json", b"{}")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[PoorStore, S3Server]]:
    store = PoorStore()
    with serving(store) as serves:
        yield store, serves


@pytest.fixture
def store(server: tuple[PoorStore, S3Server]) -> PoorStore:
    server[0].__init__()  # type: ignore[misc]
    return server[0]


@pytest.fixture
def bucket(server: tuple[PoorStore, S3Server], store: PoorStore) -> S3Folder:
    return S3Folder(server[1].new_bucket(), "out", server[1].credentials)


def test_a_good_place_is_left_as_it_was(folder: Folder) -> None:
    check_conditional_writes(folder, "_raybatch/probes/x", None)
    assert folder.list() == []
    if isinstance(folder, LocalFolder):
        assert not Path(folder.root).exists()
        assert list(Path(folder.root).parent.iterdir()) == []
    folder.write(*KNOWN)
    check_conditional_writes(folder, "_raybatch/probes/x", KNOWN)
    assert [(entry.path, folder.read(entry.path)) for entry in folder.list()] == [KNOWN]


@pytest.mark.parametrize("known", [None, KNOWN], ids=["fresh", "used"])
def test_probe_costs_two_writes(bucket: S3Folder, store: PoorStore, known: tuple[str, bytes] | None) -> None:
    bucket.write(*KNOWN)
    store.puts = 0
    check_conditional_writes(bucket, "_raybatch/probes/x", known)
    assert store.puts == 2


@pytest.mark.parametrize(
    ("answer", "does"),
    [
        ("", "ignores the header {}"),
        ("501 Not Implemented", "refuses the header {} (NotImplemented)"),
        ("400 Invalid Argument", "refuses the header {} (InvalidArgument)"),
    ],
)
@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("known", [None, KNOWN], ids=["fresh", "used"])
def test_a_store_without_a_condition_is_refused(
    bucket: S3Folder, store: PoorStore, header: str, answer: str, does: str, known: tuple[str, bytes] | None
) -> None:
    if known:
        bucket.write(*known)
    before = {entry.path: bucket.read(entry.path) for entry in bucket.list()}
    store.lacks, store.answer = {HEADERS[header]}, answer
    if header == "If-Match" and known is None:
        check_conditional_writes(bucket, "_raybatch/probes/x", known)  # nothing to replace yet
        return
    with pytest.raises(StorageError) as caught:
        check_conditional_writes(bucket, "_raybatch/probes/x", known)
    assert str(caught.value) == (
        f"{bucket.uri}: its store {does.format(header)}, so two jobs could publish there at "
        "once; choose a store with conditional writes (such as Amazon S3, MinIO or Cloudflare R2), or a "
        "shared disk."
    )
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert {entry.path: bucket.read(entry.path) for entry in bucket.list()} == before


@pytest.mark.parametrize("fault", [Fault.ERROR_500, Fault.LOST, Fault.CONFLICT, Fault.CUT_ANSWER])
@pytest.mark.parametrize("known", [None, KNOWN], ids=["fresh", "used"])
def test_a_fault_is_not_taken_for_a_poor_store(
    s3_server: S3Server, proxy: FaultyS3, fault: Fault, known: tuple[str, bytes] | None
) -> None:
    place = S3Folder(s3_server.new_bucket(), "out", proxy.api.credentials)
    if known:
        place.write(*known)
    proxy.choose = first(fault, 2, "PUT")
    check_conditional_writes(place, "_raybatch/probes/x", known)
    assert proxy.faults[fault] == 2
    assert [entry.path for entry in place.list()] == ([known[0]] if known else [])


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_links_is_refused(
    disk: LocalFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    for refused in (
        lambda: check_conditional_writes(disk, "x", None),
        lambda: disk.create("claim", b"1"),
    ):
        with pytest.raises(StorageError, match="its file system has no hard links") as caught:
            refused()
        assert caught.value.failure_class is FailureClass.USER_ERROR
    assert disk.list() == []


def test_a_disk_that_cannot_be_written_is_found(disk: LocalFolder) -> None:
    Path(disk.root).touch()
    check_conditional_writes(LocalFolder(f"{disk.root}/below/a"), "x", None)
    with pytest.raises(StorageError, match=r"^/proc/out: can't write it") as caught:
        check_conditional_writes(LocalFolder("/proc/out"), "x", None)
    assert caught.value.failure_class is FailureClass.USER_ERROR


@pytest.mark.parametrize("answer", ["400 Expired Token", "400 Authorization Header Malformed"])
def test_another_refusal_is_told_as_it_is(bucket: S3Folder, store: PoorStore, answer: str) -> None:
    store.lacks, store.answer = {IF_NONE_MATCH}, answer
    with pytest.raises(StorageError, match=r"can't write it") as caught:
        check_conditional_writes(bucket, "_raybatch/probes/x", None)
    assert "its store" not in str(caught.value)


def test_a_probe_that_fails_later_leaves_nothing(
    s3_server: S3Server, proxy: FaultyS3, once: RetryLimits
) -> None:
    place = S3Folder(s3_server.new_bucket(), "out", proxy.api.credentials)
    puts = itertools.count()
    proxy.choose = lambda call: Fault.ERROR_500 if call.method == "PUT" and next(puts) else None
    with pytest.raises(StorageError, match=r"can't write it \(InternalError\)"):
        check_conditional_writes(place, "_raybatch/probes/x", None)
    assert place.list() == []


def test_names_are_listed_in_order_from_any_on(folder: Folder) -> None:
    assert first_names(folder, "keys", 5) == []
    for name in ("b", "d", "a", "c"):
        folder.write(f"keys/{name}", b"x")
    folder.write("keys2/other", b"x")
    assert first_names(folder, "keys", 2) == ["a", "b"]
    assert first_names(folder, "keys") == ["a", "b", "c", "d"]
    assert first_names(folder, "keys", 9) == ["a", "b", "c", "d"]
    assert first_names(folder, "keys", 2, "a") == ["b", "c"]
    assert first_names(folder, "keys", 2, "bb") == ["c", "d"]
    assert first_names(folder, "keys", 2, "d") == []


def test_half_written_files_have_no_name(disk: LocalFolder) -> None:
    for name in (".raybatch-x", "a"):
        disk.write(f"keys/{name}", b"x")
    assert first_names(disk, "keys", 5) == ["a"]


def test_a_path_that_leads_out_has_no_names(disk: LocalFolder) -> None:
    with pytest.raises(RaybatchError, match="leads out"):
        first_names(disk, "../keys", 5)
