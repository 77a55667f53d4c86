# SPDX-License-Identifier: Apache-2.0
"""A full disk gives one error, no partial file and no left-overs, and the next attempt continues.

Where the machine allows it, the disks are real ones of one MiB in a mount namespace of a test process. A
limit on the size of files, which every kernel enforces, gives the same kind of error.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.input.survey import survey
from airflow_provider_raybatch.storage.errors import StorageError, TakenError
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.folders import small_files

pytestmark = pytest.mark.slow

ROOM = 256 * 1024
REMEDY = "make room there: a retry of the task goes on with the rows that are finished."


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # CPython does not notice a short write of bytecode, after which no process could import that module.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with small_files(ROOM):
        yield


@pytest.mark.parametrize("write", [LocalFolder.write, LocalFolder.create])
def test_write_that_does_not_fit_leaves_nothing(
    disk: LocalFolder, full_disk: None, write: Callable[[LocalFolder, str, bytes], None]
) -> None:
    name = "before" if write is LocalFolder.write else "x"
    disk.write("before", b"whole")
    with pytest.raises(StorageError) as caught:
        write(disk, name, b"1" * 2 * ROOM)
    assert not isinstance(caught.value, TakenError)
    assert caught.value.failure_class is FailureClass.STORAGE
    assert str(caught.value) == f"{disk.uri}/{name}: can't write it (File too large); {REMEDY}"
    assert [path.name for path in Path(disk.root).iterdir()] == ["before"]
    assert disk.read("before") == b"whole"


def test_a_source_that_does_not_fit_unpacked_blames_the_disk(
    tmp_path: Path, full_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"text\n" + b"x\n" * ROOM))
    listing = resolve(InputArguments(source=[str(tmp_path / "x.csv.gz")]), None)
    with pytest.raises(StorageError) as caught:
        survey(listing, None)
    assert caught.value.failure_class is FailureClass.STORAGE
    assert str(caught.value) == (
        f"source: {tmp_path}/x.csv.gz can't be unpacked into {tmp_path} (File too large); make room there, "
        "or set TMPDIR to another folder on the cluster's nodes."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv.gz"]


_JOB = """
import contextlib, json, resource, shutil, signal, sys
from pathlib import Path
import pytest
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.layout import ASKED, REPEATS, RECORD, REPORT_DATA, REPORT_PAGE
from airflow_provider_raybatch.storage.file import checked
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.published import ROWS, published
from tests.support.whole_job import attempt, without_cluster

root, kind = sys.argv[1:]
disk, failures = LocalFolder(root + "/out"), 0
source = Path(root, "in.jsonl")
source.write_text("".join(json.dumps({"id": number}) + "\\n" for number in range(ROWS)))
without_cluster(pytest.MonkeyPatch())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
LIMIT = resource.getrlimit(resource.RLIMIT_FSIZE)

@contextlib.contextmanager
def small_files(room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, LIMIT[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, LIMIT)

@contextlib.contextmanager
def small_disk(room):
    filler = Path(root, "filler")
    filler.write_bytes(b"")
    filler.write_bytes(b"0" * max(0, shutil.disk_usage(root).free - 16 * room))
    yield

for room in range(0, 20_000, 512):
    with (small_disk if kind == "disk" else small_files)(room):
        try:
            summary = attempt(disk, failures, str(source))
            break
        except RaybatchError as error:
            failure = error
    failures += 1
    assert failure.failure_class.value == "storage", failure
    reason = "No space left on device" if kind == "disk" else "File too large"
    assert f"({reason}); make room there: a retry" in str(failure), failure
    published(disk)  # nothing, or all of it: the journal's entry may be the last that had room
    assert not list(Path(root).rglob(".raybatch-*")), "a scratch file is left"
    for entry in disk.list("_raybatch/parts"):
        content = disk.read(entry.path)
        if entry.path.endswith(ASKED):
            assert json.loads(content)["asked"]
            continue
        if entry.path.endswith((RECORD, REPORT_DATA)):
            assert json.loads(content)["submission_id"]
            continue
        if entry.path.endswith(REPORT_PAGE):
            assert content.rstrip().endswith(b"</html>")
            continue
        assert (checked(content) if entry.path.endswith(REPEATS) else content)[-4:] == b"PAR1"
assert published(disk).summary() == summary
assert disk.read("manifest.json") == disk.read("manifests/" + summary.manifest_uri.rpartition("/")[2])
print("failures", failures)
"""


def run_job(root: Path, kind: str, before: str = "true") -> int:
    """Repeat a job with a little more room each time; return how often it failed."""
    alone = ["unshare", "-rm"] if kind == "disk" else []
    env = {"PYTHONPATH": str(Path(__file__).parents[3]), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    ran = subprocess.run(
        [*alone, "sh", "-c", f'{before} && exec "$0" "$@"', sys.executable, "-c", _JOB, str(root), kind],
        capture_output=True,
        text=True,
        env={**env, "PYTHONDONTWRITEBYTECODE": "1"},  # see `full_disk`
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.removeprefix("failures "))


def test_a_job_whose_files_do_not_fit_goes_on_when_they_do(tmp_path: Path) -> None:
    assert run_job(tmp_path, "files") >= 3


def test_a_job_that_fills_the_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    allowed = subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"this machine does not allow a small disk to be mounted: {allowed.stderr.strip()}")
    assert run_job(tmp_path, "disk", mount) >= 3
