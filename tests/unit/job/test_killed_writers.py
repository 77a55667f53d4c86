# SPDX-License-Identifier: Apache-2.0
"""A writer that is killed in the middle of a file: nobody ever sees the half."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.storage.folder import LocalFolder, S3Folder

from ...faulty_s3 import Fault, FaultyS3
from ...s3_server import S3Server

pytestmark = pytest.mark.slow

_DISK = """
import os, stat, sys, time
from airflow_provider_raybatch.job.storage.folder import LocalFolder
# A disk that takes its time for files.
os.fsync = lambda number: stat.S_ISREG(os.fstat(number).st_mode) and time.sleep(600)
getattr(LocalFolder(sys.argv[1]), sys.argv[2])("a/x.parquet", b"1" * 20_000_000)
"""
_S3 = """
import sys
from pydantic import SecretStr
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.job.storage.folder import S3Folder

url, bucket = sys.argv[1:]
key = AwsCredentials(
    aws_access_key_id=SecretStr("key"), aws_secret_access_key=SecretStr("secret"), endpoint_url=url
)
S3Folder(bucket, "out", key).write("a/x.parquet", b"1" * 40_000_000)
"""


def kill_when(reached: Callable[[], bool], script: str, *arguments: str) -> None:
    """Run a script, and SIGKILL it as soon as `reached` says so."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], env=environment)
    try:
        while not reached():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        assert process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("operation", ["write", "create"])
def test_half_a_file_on_a_disk(tmp_path: Path, operation: str) -> None:
    def half() -> bool:
        return any(path.stat().st_size > 1_000_000 for path in tmp_path.glob("a/.raybatch-*"))

    kill_when(half, _DISK, str(tmp_path), operation)
    disk = LocalFolder(str(tmp_path))
    assert disk.list() == []
    assert disk.head("a/x.parquet") is None
    (left,) = disk.abandoned(-60)
    assert disk.abandoned(3600) == []
    disk.create("a/x.parquet", b"whole")
    disk.delete([left])
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x.parquet"]


def test_half_an_upload_to_s3(s3_server: S3Server, proxy: FaultyS3) -> None:
    bucket = s3_server.new_bucket()
    healthy = S3Folder(bucket, "out", s3_server.credentials)
    parts = []

    def slow_from_the_third_part_on(call: object) -> Fault | None:
        if getattr(call, "method", "") == "PUT":
            parts.append(call)
        return Fault.SILENT if len(parts) > 2 else None

    proxy.choose = slow_from_the_third_part_on
    kill_when(lambda: len(parts) > 3, _S3, proxy.api.url, bucket)
    assert healthy.list() == []
    assert healthy.head("a/x.parquet") is None
    healthy.create("a/x.parquet", b"whole")
    assert healthy.read("a/x.parquet") == b"whole"
