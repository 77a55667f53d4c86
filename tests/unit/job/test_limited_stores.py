# SPDX-License-Identifier: Apache-2.0
"""Whole jobs with a role that may do what the docs say and no more, and on stores that can do less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.contract.run_numbers import Counts
from airflow_provider_raybatch.dataset import Dataset
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.phases import publishing
from airflow_provider_raybatch.job.reuse.store import compaction
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.storage.errors import RetryLimits, StorageError, TakenError
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.documents import blocks
from tests.support.poor_s3 import IF_NONE_MATCH, PoorStore
from tests.support.published import ROWS, published
from tests.support.s3_role import GET, LIST, PUT, Right, Role, limited, rights_of
from tests.support.s3_server import S3Server, serving
from tests.support.whole_job import attempt, without_cluster

pytest.importorskip("boto3")

POLICY = json.loads(next(block.text for block in blocks("json") if block.page.name == "storage.md"))
RIGHTS = rights_of(POLICY)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, fast_retries: RetryLimits) -> None:
    without_cluster(monkeypatch)


@pytest.fixture(scope="module")
def role() -> Role:
    return Role()


@pytest.fixture(scope="module")
def guarded(role: Role) -> Iterator[S3Server]:
    with limited(role) as server:
        yield server


@pytest.fixture
def lake(s3_server: S3Server) -> S3Folder:
    """A bucket with a source, reached with all rights. Consoles put a marker into a new folder."""
    lake = S3Folder(s3_server.new_bucket(), "", s3_server.credentials)
    rows = "".join(json.dumps({"id": number}) + "\n" for number in range(ROWS)).encode()
    lake.write("customers/rows.jsonl", rows)
    lake.write("customers/_SUCCESS", b"")
    return lake


def grant(role: Role, bucket: str, but: Right | None = None) -> None:
    """Give the role the documented rights, for this bucket."""
    role.refused.clear()
    role.rights = {
        Right(one.action, one.pattern.replace("lake/", f"{bucket}/", 1)) for one in RIGHTS if one != but
    }


def counts(place: S3Folder, number: int, source: str, **fields: Any) -> Counts:
    """Run a job, and return what the manifest of its dataset counts."""
    attempt(place, number, source, **fields)
    manifest = published(place)
    assert manifest is not None
    Dataset(manifest, place.credentials).check_files()
    return manifest.counts


def jobs(lake: S3Folder, guarded: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a job that dies before its commit, its retry, and the next run with the store's responses."""
    place = S3Folder(lake.bucket, "industries/today", guarded.credentials)
    source, reuse = f"s3://{lake.bucket}/customers/", f"s3://{lake.bucket}/responses"

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            attempt(place, 0, source, reuse=reuse)
    assert counts(place, 1, source, reuse=reuse).resumed == ROWS
    next_run = counts(place, 2, source, reuse=reuse, token="next", sampling={"temperature": 0.5})
    assert next_run.ok == ROWS
    other = S3Folder(lake.bucket, "industries/other", guarded.credentials)
    assert counts(other, 3, source, reuse=reuse, token="other").reused == ROWS
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "MANY", 0)
        patch.setattr(compaction, "GRACE", -1e9)
        store = ResponseStore(S3Folder(lake.bucket, "responses", guarded.credentials), emit=lambda _: None)
        store.add("another~0", [])
        store.compact()


def test_the_documented_rights_are_enough(
    role: Role, guarded: S3Server, lake: S3Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant(role, lake.bucket)
    jobs(lake, guarded, monkeypatch)
    assert {action for action, _ in role.refused} <= {LIST, GET}  # what may be missing is asked for


@pytest.mark.parametrize("missing", RIGHTS, ids=lambda one: f"{one.action}-{one.pattern}")
def test_each_documented_right_is_needed(
    role: Role, guarded: S3Server, lake: S3Folder, monkeypatch: pytest.MonkeyPatch, missing: Right
) -> None:
    """Without it, one sentence names the right."""
    grant(role, lake.bucket, but=missing)
    with pytest.raises(StorageError, match="the credentials are refused") as caught:
        jobs(lake, guarded, monkeypatch)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert f"or the cluster's role, which needs {missing.action} there" in str(caught.value)


def test_a_store_that_ignores_conditions_is_refused_early(
    lake: S3Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, started = PoorStore(), []
    monkeypatch.setattr(Launch, "early", lambda *_: started.append(True))
    with serving(store) as server:
        store.lacks = {IF_NONE_MATCH}
        place = S3Folder(lake.bucket, "out", server.credentials)
        with pytest.raises(StorageError, match=r"^destination: .* its store ignores the header"):
            attempt(place, 0, f"s3://{lake.bucket}/customers/rows.jsonl")
    assert (started, lake.list("out")) == ([], [])


def test_a_missing_file_is_not_a_matter_of_rights(role: Role, guarded: S3Server, lake: S3Folder) -> None:
    """S3 answers 403 about it to a role that may list a prefix only."""
    grant(role, lake.bucket)
    folder = S3Folder(lake.bucket, "industries", guarded.credentials)
    assert folder.head("gone.json") is None
    assert folder.list("gone") == []
    for read in (folder.read, folder.open, lambda path: folder.read_range(path, 0, 1)):
        with pytest.raises(StorageError, match="there is no such object"):
            read("gone.json")
    folder.replace("a [1]#.json", None, b"1")
    with pytest.raises(TakenError, match="is gone"):
        folder.replace("gone.json", b"1", b"2")
    assert folder.read("a [1]#.json") == b"1"
    assert folder.head("a [1]") is None
    source = InputArguments(source=[f"s3://{lake.bucket}/customers/gone.jsonl"])
    with pytest.raises(PreflightError, match=r"^source: nothing is at"):
        resolve(source, guarded.credentials)
    role.rights.discard(Right(GET, f"{lake.bucket}/customers/*"))
    source = InputArguments(source=[f"s3://{lake.bucket}/customers/rows.jsonl"])
    with pytest.raises(StorageError, match="needs s3:GetObject there"):  # it is listed
        resolve(source, guarded.credentials)


def test_a_new_folder_of_a_console_has_a_marker(role: Role, guarded: S3Server, lake: S3Folder) -> None:
    """The marker's name without its slash lies above what the role may list."""
    grant(role, lake.bucket)
    role.rights.add(Right(PUT, f"{lake.bucket}/customers/*"))
    guarded.client().put_object(Bucket=lake.bucket, Key="customers/")
    found = resolve(InputArguments(source=[f"s3://{lake.bucket}/customers/"]), guarded.credentials)
    assert [file.uri for file in found.files] == [f"s3://{lake.bucket}/customers/rows.jsonl"]
