# SPDX-License-Identifier: Apache-2.0
"""Files of destinations, read within bounds and roots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.plugins import reading
from airflow_provider_raybatch.plugins.reading import (
    LocalDestination,
    NotShownError,
    S3Destination,
    destination_at,
)
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.refusing_s3 import answering
from tests.support.s3_server import S3Server


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "out").mkdir(parents=True)
    (root / "out/file").write_bytes(b"content")
    (tmp_path / "root-of-others").mkdir()
    (tmp_path / "root-of-others/file").write_bytes(b"secret")
    (tmp_path / "secret").write_bytes(b"secret")
    return root


def test_a_file_below_a_root(root: Path) -> None:
    place = destination_at(f"file://{root}/out", None, [Path("/nowhere"), root])
    assert place.read("file", 7) == b"content"
    assert place.read("none", 7) is None
    assert place.read("file/none", 7) is None
    assert place.names("", 9) == ["file"]
    assert place.names("none", 9) == ()
    with pytest.raises(NotShownError, match="larger than"):
        place.read("file", 6)


@pytest.mark.parametrize("folder", ["../root-of-others", "/etc", "out/../../secret", "out/link", "out/loop"])
def test_what_is_not_below_a_root(root: Path, folder: str) -> None:
    (root / "out/link").symlink_to("../../root-of-others")
    (root / "out/loop").symlink_to("loop")
    place = LocalDestination(root / folder, [root])
    for read in (lambda: place.read("file", 9), lambda: place.names("", 9)):
        with pytest.raises(NotShownError, match="report_roots"):
            read()


def test_a_link_inside_of_a_destination(root: Path) -> None:
    (root / "out/link").symlink_to("../../secret")
    (root / "out/other").symlink_to("file")
    place = LocalDestination(root / "out", [root])
    with pytest.raises(NotShownError, match="report_roots"):
        place.read("link", 99)
    assert place.read("other", 99) == b"content"


def test_a_link_that_changes_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked before it is opened, and again afterwards: the open file itself tells where it lies."""
    link, opened = root / "out/link", os.open
    link.symlink_to("file")

    def swap(path: str, flags: int) -> int:
        target = Path(path)
        target.unlink()
        target.symlink_to("../../secret")
        return opened(path, flags)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(NotShownError, match="report_roots"):
        LocalDestination(root / "out", [root]).read("file", 99)


def test_pipes_and_devices_do_not_block(root: Path) -> None:
    os.mkfifo(root / "out/pipe")
    with pytest.raises(NotShownError, match="not a file"):
        LocalDestination(root / "out", [root]).read("pipe", 99)
    with pytest.raises(NotShownError):
        LocalDestination(root, [root]).read("out", 99)
    with pytest.raises(NotShownError, match="report_roots"):
        LocalDestination(Path("/dev"), [root]).read("zero", 99)


def test_a_folder_of_many_files(root: Path) -> None:
    for number in range(5):
        (root / f"out/{number}").touch()
    with pytest.raises(NotShownError, match="more files than the 4"):
        LocalDestination(root / "out", [root]).names("", 4)


def test_objects_of_a_bucket(s3_server: S3Server) -> None:
    bucket = s3_server.new_bucket()
    folder = S3Folder(bucket, "a b/out", s3_server.credentials)
    folder.write("x/file", b"content")
    folder.write("x/below/other", b"content")
    place = destination_at(f"s3://{bucket}/a b/out", s3_server.credentials, [])
    assert place.read("x/file", 7) == b"content"
    assert place.read("x/none", 7) is None
    assert place.names("x", 9) == ["file"]
    assert place.names("y", 9) == []
    with pytest.raises(NotShownError, match="larger than"):
        place.read("x/file", 6)
    with pytest.raises(NotShownError, match="more files than the 1"):
        place.names("x", 1)


def test_a_bucket_that_is_missing_or_silent(s3_server: S3Server) -> None:
    with pytest.raises(NotShownError, match="the bucket does not exist") as caught:
        S3Destination("there-is-none", "out", s3_server.credentials).names("x", 9)
    assert caught.value.status == 502
    nowhere = s3_server.credentials.model_copy(update={"endpoint_url": "http://127.0.0.1:9"})
    with pytest.raises(NotShownError, match="can't be read from Airflow's API server") as caught:
        S3Destination("lake", "out", nowhere).read("x", 9)
    assert "secret" not in str(caught.value)


def test_a_bucket_that_refuses(s3_server: S3Server) -> None:
    with answering(403, "<Error><Code>AccessDenied</Code></Error>") as url:
        refused = s3_server.credentials.model_copy(update={"endpoint_url": url})
        place = S3Destination("lake", "out", refused)
        for read in (lambda: place.read("x", 9), lambda: place.names("x", 9)):
            with pytest.raises(NotShownError, match="the credentials are refused") as caught:
                read()
            assert "\n" not in str(caught.value)


def test_a_slow_bucket_ends_in_time(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_SECONDS", -1.0)
    with pytest.raises(NotShownError, match="did not answer in") as caught:
        S3Destination("lake", "out", s3_server.credentials).read("x", 9)
    assert caught.value.status == 504


def test_stores_are_not_kept(s3_server: S3Server) -> None:
    """Credentials of a role are new each time; a cache of stores by them would grow for ever."""
    from airflow_provider_raybatch.storage import s3_store

    before = len(s3_store._STORES)
    bucket = s3_server.new_bucket()
    for number in range(3):
        fresh = AwsCredentials(**{**s3_server.credentials.model_dump(), "region_name": f"region-{number}"})
        assert S3Destination(bucket, "", fresh).read("x", 9) is None
    assert len(s3_store._STORES) == before
