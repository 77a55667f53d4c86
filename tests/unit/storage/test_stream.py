# SPDX-License-Identifier: Apache-2.0
"""Files that are written piece by piece appear whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.storage import errors, s3_store
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.file import REQUEST_BYTES
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from airflow_provider_raybatch.storage.stream import write_stream
from tests.support.faulty_s3 import OF_ANY_CALL, Call, Fault, FaultyS3, after, first
from tests.support.folders import small_files
from tests.support.s3_server import S3Server, WsgiApp, serving

MIB = 2**20
PIECES = [bytes([number]) * MIB for number in range(30)]
"""Four parts of an upload."""
WHOLE = b"".join(PIECES)


def write(place: Folder, path: str = "a/x", pieces: list[bytes] = PIECES) -> None:
    with write_stream(place, path) as stream:
        for piece in pieces:
            stream.write(piece)


def unfinished(place: Folder) -> list[Any]:
    """Return what a writer has left: scratch files, or uploads."""
    if isinstance(place, S3Folder):
        assert place.credentials is not None
        client = S3Server(str(place.credentials.endpoint_url)).client()
        uploads = client.list_multipart_uploads(Bucket=place.bucket).get("Uploads", [])
        return [one["Key"] for one in uploads]
    return list(place.abandoned(-60))


class TestEveryFolder:
    def test_pieces_are_one_file_afterwards(self, folder: Folder) -> None:
        write(folder)
        assert folder.read("a/x") == WHOLE
        assert [(entry.path, entry.size) for entry in folder.list()] == [("a/x", len(WHOLE))]
        assert unfinished(folder) == []

    @pytest.mark.parametrize("pieces", [[], [b""], [b"1"], [b"1", b"", b"2" * 8 * MIB], [b"3" * 17 * MIB]])
    def test_pieces_have_any_size(self, folder: Folder, pieces: list[bytes]) -> None:
        write(folder, "x", pieces)
        assert folder.read("x") == b"".join(pieces)

    def test_a_file_is_replaced_at_the_end(self, folder: Folder) -> None:
        folder.write("a/x", b"before")
        with write_stream(folder, "a/x") as stream:
            for piece in PIECES:
                stream.write(piece)
            assert folder.read("a/x") == b"before"
        assert folder.read("a/x") == WHOLE

    @pytest.mark.parametrize("after_pieces", [0, 1, 30])
    def test_an_exception_leaves_nothing(self, folder: Folder, after_pieces: int) -> None:
        folder.write("a/y", b"other")
        error = ConnectionResetError("the caller's, not the store's")
        with pytest.raises(ConnectionResetError) as caught, write_stream(folder, "a/x") as stream:  # noqa: PT012
            for piece in PIECES[:after_pieces]:
                stream.write(piece)
            raise error
        assert caught.value is error
        assert [entry.path for entry in folder.list()] == ["a/y"]
        assert unfinished(folder) == []

    def test_an_interrupt_leaves_nothing(self, folder: Folder) -> None:
        with pytest.raises(KeyboardInterrupt), write_stream(folder, "a/x") as stream:  # noqa: PT012
            for piece in PIECES:
                stream.write(piece)
            raise KeyboardInterrupt
        assert folder.list() == []
        assert unfinished(folder) == []


@pytest.mark.parametrize("pieces", [PIECES, [b"1" * 100] * 10_000])
def test_a_full_disk_leaves_nothing(disk: LocalFolder, pieces: list[bytes]) -> None:
    with pytest.raises(StorageError) as caught, small_files(200 * 1024):
        write(disk, "a/x", pieces)
    assert str(caught.value).startswith(f"{disk.uri}/a/x: can't write it (File too large); make room there")
    assert list(Path(disk.root).iterdir()) == []


def test_a_failure_that_is_ignored_is_told_at_the_end(disk: LocalFolder) -> None:
    """A file with a hole is never given its name, also if there is room again."""
    with pytest.raises(StorageError, match="File too large"), write_stream(disk, "x") as stream:  # noqa: PT012
        stream.write(b"begins")
        with small_files(200 * 1024), pytest.raises(StorageError):
            stream.write(PIECES[0])
        with pytest.raises(StorageError, match="File too large"):
            stream.write(b"small")
    assert list(Path(disk.root).iterdir()) == []


_KILLED = """
import os, signal, sys
from airflow_provider_raybatch.storage.folder import folder
from airflow_provider_raybatch.storage.stream import write_stream

with write_stream(folder(sys.argv[1]), "a/x") as stream:
    for number in range(30):
        stream.write(bytes([number]) * 2**20)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_visible(folder: Folder, s3_server: S3Server) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _KILLED, folder.uri],
        env={**os.environ, **s3_server.environment, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=60,
    )
    assert ran.returncode == -signal.SIGKILL
    assert folder.list() == []
    assert folder.head("a/x") is None
    assert len(unfinished(folder)) == 1
    write(folder)
    assert folder.read("a/x") == WHOLE


@pytest.fixture
def place(proxy: FaultyS3, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Folder:
    # On a busy machine, a part takes longer than the small requests of other tests.
    monkeypatch.setattr(errors, "RETRY_LIMITS", dataclasses.replace(errors.RETRY_LIMITS, answer=3))
    return S3Folder(s3_server.new_bucket(), "out", proxy.api.credentials)


@pytest.mark.slow
@pytest.mark.parametrize("fault", OF_ANY_CALL)
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_faults_of_s3_are_survived(place: S3Folder, proxy: FaultyS3, fault: Fault, method: str) -> None:
    """Parts are put; an upload begins and ends with a post."""
    proxy.choose = first(fault, 1, method)
    write(place)
    assert place.read("a/x") == WHOLE
    assert proxy.faults[fault] == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.CUT_ANSWER, Fault.LOST_SILENT])
def test_a_completion_whose_answer_is_lost_counts(place: S3Folder, proxy: FaultyS3, fault: Fault) -> None:
    """Some stores forget an upload with its completion, so the repeated call finds none."""
    place.write("a/x", b"of another writer")

    def choose(call: Call) -> Fault | None:
        if call.method != "POST" or "uploadId=" not in call.target:
            return None
        return Fault.FORGOTTEN if proxy.faults else fault

    proxy.choose = choose
    write(place)
    assert proxy.faults[fault] == 1
    assert place.read("a/x") == WHOLE


@pytest.mark.slow
def test_another_writers_object_is_not_taken_for_the_own(place: S3Folder, proxy: FaultyS3) -> None:
    """The upload is gone before it is completed, and an object of the same size is there."""
    with pytest.raises(StorageError) as caught, write_stream(place, "a/x") as stream:  # noqa: PT012
        for piece in PIECES:
            stream.write(piece)
        write(place)
        proxy.choose = first(Fault.FORGOTTEN, 1, "POST")
    assert proxy.faults == {Fault.FORGOTTEN: 1}
    assert str(caught.value) == f"s3://{place.bucket}/out/a/x: can't write it (NoSuchUpload)."
    assert place.read("a/x") == WHOLE


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1, 3])
def test_s3_that_stays_down_ends_the_write(
    place: S3Folder, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(
        errors, "RETRY_LIMITS", dataclasses.replace(errors.RETRY_LIMITS, whole=0.5, repeats=3)
    )
    proxy.choose = after(number, Fault.ERROR_503)
    with pytest.raises(StorageError) as caught:
        write(place)
    assert str(caught.value).startswith(f"s3://{place.bucket}/out/a/x: can't write it (SlowDown)")
    proxy.choose = lambda call: None
    assert place.list() == []


@pytest.mark.slow
def test_a_failed_part_aborts_the_upload(place: S3Folder, proxy: FaultyS3) -> None:
    limits = dataclasses.replace(errors.RETRY_LIMITS, whole=0, repeats=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "RETRY_LIMITS", limits)
        proxy.choose = first(Fault.ERROR_500, 1, "PUT")
        with pytest.raises(StorageError, match="InternalError"):
            write(place, pieces=PIECES * 3)
    assert place.list() == []
    assert unfinished(place) == []


@pytest.mark.slow
def test_slow_s3_makes_the_writer_wait(place: S3Folder, proxy: FaultyS3) -> None:
    """So that pieces don't pile up in memory: of 88 MiB, two parts are under way and one is collected."""
    going, written = threading.Event(), 0

    def hold(call: Any) -> None:
        if call.method == "PUT":
            going.wait(200)

    def run() -> None:
        nonlocal written
        with write_stream(place, "a/x") as stream:
            for number in range(88):
                stream.write(PIECES[number % 30])
                written += 1

    proxy.choose = hold
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "RETRY_LIMITS", dataclasses.replace(errors.RETRY_LIMITS, answer=250))
        writer = threading.Thread(target=run)
        writer.start()
        seen = -1
        while seen != written or written < 16:  # until it stands still
            seen = written
            time.sleep(0.5)
        going.set()
        writer.join(60)
    assert seen <= 32
    head = place.head("a/x")
    assert head is not None
    assert head.size == 88 * MIB


@pytest.mark.parametrize("size", [3, 30])
def test_credentials_that_end_meanwhile_are_renewed(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a role last for an hour or less, an upload over a slow line longer.

    They are renewed long before they end, so no request is under way with those that have ended.
    """
    monkeypatch.setattr(s3_store, "_RENEWED", timedelta(0))  # so that each request asks
    valid, arrived = "first", threading.Semaphore(0)

    def only_valid(app: WsgiApp) -> WsgiApp:
        def guarded(environ: dict[str, Any], start_response: Any) -> Any:
            if environ.get("HTTP_X_AMZ_SECURITY_TOKEN", valid) == valid:
                if "partNumber=" in environ["QUERY_STRING"]:
                    arrived.release()
                return app(environ, start_response)
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>ExpiredToken</Code></Error>"]

        return guarded

    with serving(only_valid) as server:

        def place() -> S3Folder:
            token = {"aws_session_token": SecretStr(valid)}
            return S3Folder(bucket, "in", server.credentials.model_copy(update=token))

        bucket = server.new_bucket()
        with write_stream(place(), "x", place) as stream:
            for number, piece in enumerate(PIECES[:size]):
                if number == size // 2:
                    for _ in range(number * MIB // REQUEST_BYTES):
                        assert arrived.acquire(timeout=60)
                    time.sleep(0.2)  # obstore asks once in 100 ms at most
                    valid = "second"
                stream.write(piece)
        assert place().read("x") == b"".join(PIECES[:size])
