# SPDX-License-Identifier: Apache-2.0
"""Files that references name: only files, and only below the root."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.media.allowed import DiskFile, ImageAccess
from airflow_provider_raybatch.job.media.stores import read_file
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.image_files import access


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a file, beside one with a secret."""
    for name in ("img/sub", "img-secret"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "img/sub/a.png").write_bytes(b"content")
    (tmp_path / "img-secret/a.png").write_bytes(b"secret")
    return tmp_path / "img"


def read(path: Path, root: Path, **fields: float) -> bytes:
    allowed: ImageAccess = access(roots=(str(root),), **fields)
    place = allowed.located(str(path))
    assert isinstance(place, DiskFile)
    return read_file(place, allowed)


def refused(path: Path, root: Path, **fields: float) -> str:
    with pytest.raises(ImageError) as caught:
        read(path, root, **fields)
    return str(caught.value)


def test_a_file_below_the_root_is_read(root: Path) -> None:
    assert read(root / "sub/a.png", root) == b"content"
    assert read(root / "sub/a.png", root / "sub") == b"content"
    assert read(root / "sub/a.png", Path("/")) == b"content"


def test_links_inside_of_the_root_are_followed(root: Path) -> None:
    (root / "b.png").symlink_to("sub/a.png")
    (root / "folder").symlink_to(root / "sub")
    assert read(root / "b.png", root) == b"content"
    assert read(root / "folder/a.png", root) == b"content"


def test_the_root_may_be_a_link(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    assert read(link / "sub/a.png", link) == b"content"


@pytest.mark.parametrize("to", ["../img-secret/a.png", "/etc/passwd", "sub/../../img-secret/a.png"])
def test_a_link_out_of_the_root_is_refused(root: Path, to: str) -> None:
    (root / "b.png").symlink_to(to)
    assert "is a link out of" in refused(root / "b.png", root)
    (root / "c").symlink_to(root.parent / "img-secret")
    assert "is a link out of" in refused(root / "c/a.png", root)


@pytest.mark.parametrize("name", ["b.png", "c/a.png"])
def test_a_link_made_after_the_check_is_refused(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "b.png").symlink_to("../img-secret/a.png")
    (root / "c").symlink_to("../img-secret")
    monkeypatch.setattr(os.path, "realpath", os.fspath)  # which was asked before the link was there
    assert "can't be read" in refused(root / name, root)


def test_links_in_a_circle_are_refused(root: Path) -> None:
    (root / "b.png").symlink_to("b.png")
    assert "can't be read" in refused(root / "b.png", root)


def test_a_pipe_is_refused(root: Path) -> None:
    os.mkfifo(root / "pipe")
    opened = threading.Timer(20, lambda: os.close(os.open(root / "pipe", os.O_RDWR)))
    opened.start()  # so that a reader that waits for a writer does not wait for good
    try:
        assert "is not a file with content" in refused(root / "pipe", root)
        assert opened.is_alive()
    finally:
        opened.cancel()


def test_a_socket_and_a_folder_are_refused(root: Path) -> None:
    assert "is not a file with content" in refused(root / "sub", root)
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(root, os.O_RDONLY)
        try:  # the address of a socket has 107 characters at most
            one.bind(f"/proc/self/fd/{folder}/socket")
        finally:
            os.close(folder)
        assert "can't be read" in refused(root / "socket", root)


def test_a_device_is_refused() -> None:
    assert "is not a file with content" in refused(Path("/dev/zero"), Path("/dev"))


def test_a_missing_file_is_refused(root: Path) -> None:
    for name in ("b.png", "none/b.png", "sub/a.png/b.png", "a" * 300):
        assert "check the path, and that all nodes see the file" in refused(root / name, root)


def test_a_file_may_have_max_image_bytes_at_most(root: Path) -> None:
    assert read(root / "sub/a.png", root, most_bytes=7) == b"content"
    text = refused(root / "sub/a.png", root, most_bytes=6)
    assert text.endswith(
        "has more than the 6 bytes of max_image_bytes; make it smaller, or raise max_image_bytes"
    )


def test_a_file_that_grows_is_bounded_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [b"1234", b"5678"]
    monkeypatch.setattr(os, "read", lambda file, size: blocks.pop(0))
    assert "max_image_bytes" in refused(root / "sub/a.png", root, most_bytes=7)


def test_a_disk_slower_than_image_timeout_fails_the_row(root: Path) -> None:
    assert "within the 1e-09 s of image_timeout" in refused(root / "sub/a.png", root, timeout=1e-9)


def test_a_root_that_a_node_lacks_fails_the_job(root: Path) -> None:
    with pytest.raises(StorageError, match="all nodes of the cluster may read there") as caught:
        read(root / "none/a.png", root / "none")
    assert caught.value.failure_class is FailureClass.USER_ERROR


def test_a_failing_disk_fails_the_job(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int, size: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "read", fail)
    with pytest.raises(StorageError, match="Input/output error") as caught:
        read(root / "sub/a.png", root)
    assert caught.value.failure_class is FailureClass.STORAGE
