# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import io
import os
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage.errors import StorageError, TakenError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.folder import folder as open_folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from airflow_provider_raybatch.storage.stream import write_stream
from tests.support.s3_server import S3Server

Writing = Callable[[LocalFolder, str, bytes], None]
NAMES = ["a", "b c/d", "ü/#?%20{}[x]", "b c/e.parquet"]


def streamed(place: Folder, path: str, content: bytes) -> None:
    with write_stream(place, path) as stream:
        stream.write(content)


class TestEveryFolder:
    def test_what_is_written_is_read_and_listed(self, folder: Folder) -> None:
        for name in NAMES:
            folder.write(name, name.encode())
        assert [entry.path for entry in folder.list()] == sorted(NAMES)
        for name in NAMES:
            assert folder.read(name) == name.encode()
            entry = folder.head(name)
            assert entry is not None
            assert (entry.path, entry.size) == (name, len(name.encode()))
            assert entry in folder.list()

    def test_an_open_file_is_written_in_pieces(self, folder: Folder) -> None:
        """However large it is, little of it is in memory."""
        asked: list[int | None] = []

        class Asked(io.BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                asked.append(size)
                return super().read(size)

        content = os.urandom(20 * 2**20)
        file = Asked(content)
        file.seek(7)  # where its writer left it
        folder.write("x", file)
        assert folder.read("x") == content
        with folder.open("x") as stream:
            stream.seek(9_000_000)
            assert stream.read(500) == content[9_000_000:9_000_500]
        assert all(size is not None and 0 < size <= 8 * 2**20 for size in asked)

    def test_a_listing_ends_at_the_folder_and_not_at_its_name(self, folder: Folder) -> None:
        folder.write("part/1", b"")
        folder.write("party/2", b"")
        assert [entry.path for entry in folder.list("part")] == ["part/1"]
        assert folder.list("par") == []
        assert [entry.path for entry in folder.list("part/1")] == ["part/1"]

    def test_what_is_not_there(self, folder: Folder) -> None:
        assert folder.list() == []
        assert folder.head("x") is None
        folder.write("x/y", b"")
        assert folder.head("x") is None
        for read in (folder.read, folder.open, lambda path: folder.read_range(path, 0, 1)):
            with pytest.raises(StorageError) as caught:
                read("z")
            assert caught.value.failure_class is FailureClass.USER_ERROR
            assert f"{folder.uri}/z: can't read it" in str(caught.value)

    def test_writing_again_replaces_and_changes_the_version(self, folder: Folder) -> None:
        folder.write("x", b"one")
        first = folder.head("x")
        folder.write("x", b"other")
        second = folder.head("x")
        assert folder.read("x") == b"other"
        assert first is not None
        assert second is not None
        assert first.version != second.version

    def test_creating_what_exists_is_refused_and_changes_nothing(self, folder: Folder) -> None:
        folder.create("x/y", b"one")
        with pytest.raises(TakenError, match="exists already"):
            folder.create("x/y", b"two")
        assert folder.read("x/y") == b"one"

    def test_of_many_creators_one_wins(self, folder: Folder) -> None:
        def race(number: int, barrier: threading.Barrier, path: str) -> int | None:
            place = pickle.loads(pickle.dumps(folder))
            barrier.wait()
            try:
                place.create(path, str(number).encode() * 1000)
            except TakenError:
                return None
            return number

        with ThreadPoolExecutor(8) as pool:
            for race_number in range(10):
                barrier, path = threading.Barrier(8), f"journal/{race_number:08d}.json"
                ended = pool.map(race, range(8), [barrier] * 8, [path] * 8)
                (winner,) = [number for number in ended if number is not None]
                assert folder.read(path) == str(winner).encode() * 1000
        assert len(folder.list("journal")) == 10

    def test_deleting_is_content_with_what_is_gone(self, folder: Folder) -> None:
        folder.write("a", b"")
        folder.write("b", b"")
        folder.delete(["a", "nothing", "b"])
        folder.delete([])
        assert folder.list() == []

    @pytest.mark.parametrize(
        ("paths", "error", "why"),
        [("ab", TypeError, "'ab' is one path"), (["a", ""], ValueError, "the folder itself")],
    )
    def test_what_is_not_a_list_of_files_is_not_deleted(
        self, folder: Folder, paths: Any, error: type[Exception], why: str
    ) -> None:
        folder.write("a", b"")
        with pytest.raises(error, match=why):
            folder.delete(paths)
        assert [entry.path for entry in folder.list()] == ["a"]

    def test_an_open_file_is_a_plain_seekable_stream(self, folder: Folder) -> None:
        folder.write("lines", b"one\ntwo\nthree")
        with folder.open("lines") as stream:
            assert stream.read(2) == b"on"
            assert stream.seek(4) == 4
            assert list(stream) == [b"two\n", b"three"]
            assert stream.read(1) == b""
        folder.write("empty", b"")
        with folder.open("empty") as stream:
            assert stream.read() == b""

    def test_a_range_is_exactly_what_was_asked_for(self, folder: Folder) -> None:
        folder.write("x", b"0123456789")
        assert folder.read_range("x", 0, 3) == b"012"
        assert folder.read_range("x", 4, 1) == b"4"
        assert folder.read_range("x", 8, 5) == b"89"


class TestLocal:
    def test_unfinished_writes_and_dangling_links_are_not_listed(self, tmp_path: Path) -> None:
        (tmp_path / ".raybatch-123").write_bytes(b"half")
        (tmp_path / "whole").write_bytes(b"")
        (tmp_path / "link").symlink_to(tmp_path / "gone")
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        assert [entry.path for entry in LocalFolder(str(tmp_path)).list()] == ["whole"]

    def test_folders_behind_links_are_listed_and_not_swept(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
        (tmp_path / "elsewhere" / "deep" / "x").write_bytes(b"")
        (tmp_path / "elsewhere" / ".raybatch-123").write_bytes(b"half")
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
        here = LocalFolder(str(tmp_path / "here"))
        assert [entry.path for entry in here.list()] == ["link/deep/x"]
        assert here.abandoned(-1) == []

    def test_no_file_is_listed_twice_for_links(self, tmp_path: Path) -> None:
        for place in ("days/a-first", "days/z-last", "elsewhere"):
            (tmp_path / place).mkdir(parents=True)
            (tmp_path / place / "x").write_bytes(b"")
        links = {"b-latest": "days/z-last", "one": "elsewhere", "two": "elsewhere", "self": "days"}
        for name, target in links.items():
            (tmp_path / "days" / name).symlink_to(tmp_path / target)
        found = [entry.path for entry in LocalFolder(str(tmp_path / "days")).list()]
        assert found == ["a-first/x", "one/x", "z-last/x"]

    @pytest.mark.parametrize("write", [LocalFolder.write, LocalFolder.create, streamed])
    def test_a_file_in_place_of_the_folder_is_named(self, tmp_path: Path, write: Writing) -> None:
        (tmp_path / "file").write_bytes(b"")
        place = LocalFolder(str(tmp_path / "file"))
        with pytest.raises(StorageError) as caught:
            write(place, "_raybatch/x", b"")
        assert type(caught.value) is StorageError
        assert caught.value.failure_class is FailureClass.USER_ERROR
        assert str(caught.value) == (
            f"{tmp_path}/file/_raybatch/x: can't write it (Not a directory); check the path, and that all "
            "nodes of the cluster may write there."
        )

    def test_a_link_whose_answer_was_lost_is_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link = os.link

        def link_twice(source: Path, target: Path) -> None:
            link(source, target)
            link(source, target)

        monkeypatch.setattr(os, "link", link_twice)
        place = LocalFolder(str(tmp_path))
        place.create("x", b"mine")
        with pytest.raises(TakenError):
            place.create("x", b"mine")
        assert [path.name for path in tmp_path.iterdir()] == ["x"]

    @pytest.mark.parametrize("operation", ["list", "abandoned"])
    def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
    ) -> None:
        (tmp_path / "journal").mkdir()
        scandir = os.scandir

        def failing(path: str) -> Any:
            if str(path).endswith("journal"):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", failing)
        place = LocalFolder(str(tmp_path))
        with pytest.raises(StorageError, match=r"can't list it \(Stale file handle\)") as caught:
            place.list() if operation == "list" else place.abandoned(0)
        assert caught.value.failure_class is FailureClass.STORAGE

    def test_what_cannot_be_deleted_is_named(self) -> None:
        with pytest.raises(StorageError, match=r"^/proc/self/status: can't delete it \("):
            LocalFolder("/proc/self").delete(["status"])

    @pytest.mark.parametrize(
        ("uri", "root"),
        [
            ("/a/b/", "/a/b"),
            ("file:///a/b%20c", "/a/b c"),
            ("/a/../b", "/b"),
            ("/", "/"),
        ],
    )
    def test_the_place_of_a_uri(self, uri: str, root: str) -> None:
        assert open_folder(uri) == LocalFolder(root)

    def test_a_relative_path_is_made_absolute(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.chdir(tmp_path)
        assert open_folder("x").uri == f"{tmp_path}/x"


class TestS3:
    @pytest.mark.parametrize(
        "call",
        [
            lambda place: place.list(),
            lambda place: place.read("x"),
            lambda place: place.write("x", b""),
            lambda place: place.create("x", b""),
        ],
    )
    def test_an_unknown_bucket(self, s3_server: S3Server, call: Callable[[Folder], object]) -> None:
        with pytest.raises(
            StorageError, match=r"^s3://no-such-bucket.*the bucket does not exist; check"
        ) as caught:
            call(S3Folder("no-such-bucket", "out", s3_server.credentials))
        assert caught.value.failure_class is FailureClass.USER_ERROR

    def test_no_credentials_at_all(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        # On machines outside AWS no server answers there.
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            monkeypatch.setenv(
                "AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}"
            )
            monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
            place = S3Folder("bucket", "out", AwsCredentials(endpoint_url=s3_server.url))
            with pytest.raises(
                StorageError, match="the cluster has no AWS credentials; set aws_conn_id"
            ) as caught:
                place.list()
        assert caught.value.failure_class is FailureClass.USER_ERROR


@pytest.mark.parametrize("path", ["{}/outside", "../outside", "a/../../outside"])
def test_no_path_leads_out_of_a_folder(tmp_path: Path, path: str) -> None:
    """Whatever a damaged document names: nothing is read, written or deleted elsewhere."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "kept").touch()
    (root / "a").mkdir(parents=True)
    folder, named = LocalFolder(str(root)), path.format(tmp_path)
    for call in (
        lambda: folder.delete([named]),
        lambda: folder.write(f"{named}/kept", b"x"),
        lambda: streamed(folder, f"{named}/kept", b"x"),
        lambda: folder.read(f"{named}/kept"),
        lambda: folder.list(named),
    ):
        with pytest.raises(StorageError, match=f"leads out of {root}"):
            call()
    assert (outside / "kept").read_bytes() == b""
