# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.dags.sweep import (
    ABANDONED,
    BATCHES_KEPT,
    CREATES_KEPT,
    DAY,
    SLACK,
    STRAYS_KEPT,
    sweep,
)
from airflow_provider_raybatch.batch_api.store.ending import dataset_of, decided, end_of, end_without_job
from airflow_provider_raybatch.batch_api.store.ids import new_file_id
from airflow_provider_raybatch.batch_api.store.records import BatchRecord, Started
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.arguments.openai_batch import Decision
from airflow_provider_raybatch.storage.folder import folder
from airflow_provider_raybatch.storage.stream import write_stream
from tests.support.batch_api import (
    DyingError,
    batches_of,
    created,
    ended_of,
    files_of,
    published,
    state_of,
    store_at,
    write_progress,
)
from tests.support.s3_server import serving

MONTH = 30 * DAY


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return store_at(tmp_path)


@pytest.fixture
def bucket() -> Iterator[BatchStore]:
    with serving() as server:
        place = folder(f"s3://{server.new_bucket()}/batch-api", server.credentials)
        yield BatchStore(place, b"the secret of this Airflow")


def paths(store: BatchStore) -> set[str]:
    return {entry.path for entry in store.root.list()}


def ended(store: BatchStore, **fields: Any) -> BatchRecord:
    record = created(store, **fields)
    made_at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(record.created_at))
    manifest = published(store, record, {"a.jsonl": 2}, {"a.jsonl": 1}, created_at=made_at)
    store.root.write(f"{dataset_of(record.id)}/_raybatch/parts/x/part", b"rows")
    end_of(store, state_of(store, record), manifest)
    return record


def test_nothing_that_is_valid_is_deleted(store: BatchStore) -> None:
    ended(store)
    created(store)
    before = paths(store)

    assert not any(sweep(store).values())
    assert paths(store) == before


def test_files_go_at_their_expiry_with_what_came_of_them(store: BatchStore, tmp_path: Path) -> None:
    record = ended(store)

    swept = sweep(store, time.time() + MONTH + SLACK + 60)

    assert (swept["files"], swept["datasets"]) == (3, 1)
    assert paths(store) == {
        f"batches/{record.id}/{name}" for name in ("record.json", "outcome.json", "ended.json")
    } | {path for path in paths(store) if path.startswith("users/")}
    assert files_of(store) == []
    assert batches_of(store) == [record.id]
    assert not list((tmp_path / "files").iterdir())
    assert not (tmp_path / dataset_of(record.id)).exists()
    assert not any(sweep(store, time.time() + MONTH + SLACK + 60).values())


def test_all_goes_in_a_bucket_too(bucket: BatchStore) -> None:
    ended(bucket)
    cancelled = created(bucket)
    bucket.root.write(f"{dataset_of(cancelled.id)}/_raybatch/parts/x/part", b"rows")
    end_without_job(bucket, state_of(bucket, cancelled), "cancelled")
    bucket.root.write("files/file-" + "0" * 32 + "/content.jsonl", b"of a killed upload")
    bucket.root.write("creates/old/1", b"x")
    before = paths(bucket)
    assert not any(sweep(bucket).values())
    assert paths(bucket) == before

    month = sweep(bucket, time.time() + MONTH + SLACK + 60)
    sweep(bucket, time.time() + BATCHES_KEPT + 60)

    assert (month["files"], month["datasets"], month["strays"], month["creates"]) == (4, 2, 1, 1)
    assert paths(bucket) == set()


def test_several_sweeps_at_once_do_as_one(store: BatchStore) -> None:
    for _ in range(5):
        ended(store)
    later = time.time() + MONTH + SLACK + 60

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: sweep(store, later), range(4)))

    assert not any(path.startswith("files/") or "/dataset/" in path for path in paths(store))
    assert not any(sweep(store, later).values())


def test_a_dataset_stays_until_its_last_file_expires(store: BatchStore) -> None:
    record = ended(store)
    end = ended_of(store, record)
    errors = store.file(str(end.error_file_id))
    assert errors is not None
    store.root.delete([f"files/{errors.id}/record.json"])
    longer = errors.model_copy(update={"expires_at": errors.expires_at + MONTH})
    store.add_file(longer)

    swept = sweep(store, time.time() + MONTH + SLACK + 60)

    assert (swept["files"], swept["datasets"]) == (2, 0)
    assert store.file(longer.id) == longer
    assert all(store.root.head(piece.path) for piece in longer.content)
    assert sweep(store, time.time() + 2 * MONTH + SLACK + 60)["datasets"] == 1


def test_nothing_of_a_batch_that_runs_is_deleted(store: BatchStore) -> None:
    """Neither its input nor what it has published, however late it is."""
    record = created(store, window=500 * DAY)
    manifest = published(store, record, {"a.jsonl": 3})
    kept = {path for path in paths(store) if path.startswith(("files/", "batches/"))}

    swept = sweep(store, time.time() + 400 * DAY)

    assert not any(swept.values())
    assert kept <= paths(store)
    assert end_of(store, state_of(store, record), manifest).output_file_id


@pytest.mark.parametrize("decision", [None, "cancelled", "completed"])
def test_an_abandoned_batch_ends(store: BatchStore, decision: Decision | None) -> None:
    """Its run was deleted, and its owner does not look: a day after its window, and not before."""
    record = created(store)
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    if decision is not None:
        decided(store, record.id, decision)

    sweep(store, record.expires_at + ABANDONED - 1)
    assert state_of(store, record).ended is None
    sweep(store, record.expires_at + ABANDONED)

    expected = {None: "expired", "cancelled": "cancelled", "completed": "failed"}
    assert state_of(store, record).status == expected[decision]
    assert sweep(store, time.time() + MONTH + SLACK + 60)["files"] == 1


def test_an_abandoned_batch_ends_with_what_is_published(store: BatchStore) -> None:
    record = created(store)
    published(store, record, {"a.jsonl": 3})

    sweep(store, record.expires_at + ABANDONED)

    ended = ended_of(store, record)
    assert (ended.decision, ended.counts.completed) == ("completed", 3)
    assert ended.output_file_id is not None


def test_a_late_batch_is_left_while_its_job_lives(store: BatchStore) -> None:
    record = created(store)
    store.start(record.id, Started(at=1.0, total=3, nonce="n"))
    late = record.expires_at + 2 * ABANDONED
    write_progress(store, record.id, 1, late - 60)

    sweep(store, late)
    assert state_of(store, record).ended is None
    sweep(store, late + ABANDONED)
    assert state_of(store, record).status == "expired"


def test_a_dataset_without_files_goes_when_they_would(store: BatchStore) -> None:
    record = created(store)
    store.root.write(f"{dataset_of(record.id)}/_raybatch/parts/x/part", b"rows")
    end_without_job(store, state_of(store, record), "cancelled")

    assert sweep(store)["datasets"] == 0
    assert sweep(store, time.time() + MONTH + SLACK + 60)["datasets"] == 1
    assert state_of(store, record).status == "cancelled"


def test_documents_of_a_batch_go_after_a_year(store: BatchStore, tmp_path: Path) -> None:
    record = ended(store)
    sweep(store, time.time() + MONTH + SLACK + 60)

    swept = sweep(store, time.time() + BATCHES_KEPT + 60)

    assert swept["batches"] == 1
    assert batches_of(store) == []
    assert paths(store) == set()
    assert not (tmp_path / "batches" / record.id).exists()


def test_keys_and_content_without_records_go(store: BatchStore) -> None:
    record = created(store)
    store.root.delete([f"files/{record.input_file_id}/record.json", f"batches/{record.id}/record.json"])

    assert sweep(store)["strays"] == 2  # an upload writes its record a moment after the content
    assert store.root.head(record.input[0].path) is not None
    assert sweep(store, time.time() + STRAYS_KEPT + 60)["strays"] == 1
    assert store.root.head(record.input[0].path) is None


def test_what_a_killed_upload_left_is_deleted(store: BatchStore, tmp_path: Path) -> None:
    """On a disk, its file had no name yet, so that no listing shows it."""
    kept = set(paths(store))
    place = layout.file_folder(new_file_id())
    upload = write_stream(store.root, f"{place}/{layout.CONTENT}")
    upload.__enter__().write(b"half")

    assert sweep(store)["strays"] == 0
    assert len([*(tmp_path / place).iterdir()]) == 1
    assert sweep(store, time.time() + STRAYS_KEPT + 60)["strays"] == 1
    assert not (tmp_path / place).exists()
    assert paths(store) == kept


def test_creates_go_a_log_at_a_time(store: BatchStore, tmp_path: Path) -> None:
    for name in ("old/1", "old/2", "new/1", "new/2"):
        store.root.write(f"creates/{name}", b"x")
    long_ago = time.time() - CREATES_KEPT - 60
    for name in ("old/1", "old/2", "new/1"):
        os.utime(tmp_path / "creates" / name, (long_ago, long_ago))

    assert sweep(store)["creates"] == 2
    assert paths(store) == {"creates/new/1", "creates/new/2"}


def test_what_is_not_signed_is_left_alone(store: BatchStore) -> None:
    record = ended(store)
    other = BatchStore(store.root, b"another secret, as after a change of the setting")
    before = paths(store)

    swept = sweep(other, time.time() + BATCHES_KEPT + 60)

    assert swept["unreadable"] == 4
    assert paths(store) == before
    assert store.record(record.id) == record


@pytest.mark.parametrize("most", range(12))
def test_the_next_sweep_goes_on_where_one_died(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    ended(store)
    delete, left = type(store.root).delete, iter(range(most))

    def dying(folder: Any, each: Any) -> None:
        for path in each:
            if next(left, None) is None:
                raise DyingError
            delete(folder, [path])

    def both_sweeps() -> None:
        for later in (MONTH + SLACK, BATCHES_KEPT):
            sweep(store, time.time() + later + 60)

    with monkeypatch.context() as patched:
        patched.setattr(type(store.root), "delete", dying)
        with pytest.raises(DyingError):
            both_sweeps()

    both_sweeps()

    assert paths(store) == set()


def test_half_written_files_go_after_a_day(store: BatchStore, tmp_path: Path) -> None:
    """Those of uploads and documents whose server was killed; a job removes its own."""
    record = created(store)
    names = (
        "files/file-1/.raybatch-a",
        "users/x/files/.raybatch-b",
        "creates/x/.raybatch-c",
        f"{layout.batch_folder(record.id)}/.raybatch-f",
    )
    of_a_job = tmp_path / dataset_of(record.id) / ".raybatch-d"
    left = [tmp_path / name for name in names]
    for path in (*left, of_a_job):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (time.time() - DAY - 60,) * 2)
    going = tmp_path / "files/file-2/.raybatch-e"
    going.parent.mkdir()
    going.write_bytes(b"an upload that goes on")

    assert sweep(store)["strays"] == 4
    assert not any(path.exists() for path in left)
    assert of_a_job.exists()
    assert going.exists()
    assert sweep(store)["strays"] == 0


def test_folders_of_dead_uploads_go(store: BatchStore, tmp_path: Path) -> None:
    begun, whole = new_file_id(), new_file_id()
    for name in (f"{begun}/.raybatch-a", f"{whole}/content.jsonl"):
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        os.utime(path, (time.time() - DAY - 60,) * 2)

    assert sweep(store)["strays"] == 2
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("linked", ["", "data"])
def test_nothing_behind_a_link_is_deleted(store: BatchStore, tmp_path: Path, linked: str) -> None:
    """A node of the cluster may make a link in a dataset; the sweep has the rights of Airflow's worker."""
    foreign = tmp_path.parent / f"{tmp_path.name}-foreign"
    foreign.mkdir()
    (foreign / "airflow.cfg").write_bytes(b"x")
    record, other = created(store), ended(store)
    end_without_job(store, state_of(store, record), "cancelled")
    place = tmp_path / dataset_of(record.id) / linked
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(foreign)

    swept = sweep(store, time.time() + MONTH + SLACK + 60)

    assert (foreign / "airflow.cfg").exists()
    assert swept["unreadable"] == 1
    assert not (tmp_path / dataset_of(other.id)).exists()
    assert sweep(store, time.time() + BATCHES_KEPT + 60)["unreadable"] == 1
    assert (foreign / "airflow.cfg").exists()
