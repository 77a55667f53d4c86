# SPDX-License-Identifier: Apache-2.0
"""The page of a user's own batches, asked of Airflow's own API server."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store.ids import newest_first, owner_digest
from airflow_provider_raybatch.batch_api.store.records import BatchEnd, BatchRecord, Started, Usage
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.contract.arguments.openai_batch import BatchError, RequestCounts
from airflow_provider_raybatch.contract.layout import batch_folder
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.airflow_server import Server
from tests.support.batch_api import batch_record, write_progress

PAGE = "/raybatch/batches"
SECRET = "s" * 40


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchStore:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_SECRET", SECRET)
    return BatchStore(LocalFolder(str(tmp_path / "root")), f"raybatch batch api\n{SECRET}".encode())


def add(store: BatchStore, owner: str = "viewer", **given: Any) -> BatchRecord:
    fields = {"created_at": 1_795_000_000.0, "model": "llama", "dag_id": "batches_llama", **given}
    return store.add_batch(batch_record(owner=owner, input_lines=1234, **fields))


def end(store: BatchStore, record: BatchRecord, decision: Any, **given: Any) -> None:
    counts = RequestCounts(total=1234, completed=1230, failed=4)
    fields = {"counts": counts, "decided_at": 2.0, "at": 3.0, "nonce": "n", **given}
    store.end(record.id, BatchEnd(decision=decision, **fields))


def test_states_counts_and_cost_are_shown(server: Server, store: BatchStore) -> None:
    done, going = add(store), add(store, model="mistral", created_at=1_795_000_100.0)
    usage = Usage(input_tokens=70_000, output_tokens=654)
    end(store, done, "completed", usage=usage, cost=1.25, currency="EUR", output_file_id="file-2")
    store.start(going.id, Started(at=1.0, total=500, nonce="n"))
    write_progress(store, going.id, 77, total=500)
    text = server.by_cookie(PAGE, "viewer").text
    for said in ("completed", "1,230", "70,654", "1.25 EUR", "in progress", "77", "500", "mistral"):
        assert said in text
    place = f"/dags/batches_llama/runs/{done.id}"
    assert f'href="{place}"' in text
    assert f'href="/raybatch{place}/tasks/answer/-1/dataset">output' in text
    assert f"{place}/tasks/answer/-1/failed" not in text
    assert text.index(going.id) < text.index(done.id)


def test_a_batch_that_has_not_begun_is_queued(server: Server, store: BatchStore) -> None:
    add(store)
    text = server.by_cookie(PAGE, "viewer").text
    assert ">queued<" in text
    assert "validating" not in text


def test_a_failed_batch_says_why(server: Server, store: BatchStore) -> None:
    error = BatchError(code="invalid_json_line", message="Line 2 is <b>not</b> JSON.", line=2)
    record = add(store)
    end(store, record, "failed", errors=[error], error_file_id="file-3")
    text = server.get(PAGE).text
    assert f"{record.id}/tasks/answer/-1/failed" in text
    assert "Line 2 is &lt;b&gt;not&lt;/b&gt; JSON." in text


def test_batches_of_others_are_not_shown(server: Server, store: BatchStore) -> None:
    """Also not to an admin of Airflow, whose page is about the admin's own batches."""
    record = add(store, "viewer")
    for user in ("guest", "admin"):
        answer = server.get(PAGE, user)
        assert answer.status_code == 200
        assert record.id not in answer.text
        assert "There are none yet" in answer.text
    assert record.id in server.get(PAGE, "viewer").text


def test_a_made_up_key_shows_no_batch_of_others(server: Server, store: BatchStore) -> None:
    """Keys have no signature, and who may write to the bucket can add some."""
    record = add(store, "admin")
    key = newest_first(record.created_at, record.id)
    store.root.write(f"users/{owner_digest('viewer')}/batches/{key}", b"x")
    assert record.id not in server.get(PAGE, "viewer").text


def test_a_forged_record_hides_its_batch_alone(server: Server, store: BatchStore) -> None:
    record, other = add(store), add(store)
    store.root.write(f"{batch_folder(record.id)}/record.json", b'{"record": "{}", "signature": "x"}')
    text = server.get(PAGE).text
    assert record.id not in text
    assert other.id in text


def test_anonymous_sees_no_batches(server: Server, store: BatchStore) -> None:
    assert server.get(PAGE, None).status_code == 401


def test_the_newest_hundred_are_shown(server: Server, store: BatchStore) -> None:
    records = [add(store, created_at=1_795_000_000.0 + number) for number in range(103)]
    text = server.get(PAGE).text
    assert "The newest 100 of 103" in text
    assert records[-1].id in text
    assert records[2].id not in text


def test_an_airflow_without_a_batch_api_says_so(server: Server) -> None:
    answer = server.get(PAGE)
    assert answer.status_code == 404
    assert "batch_api_root" in answer.text


@pytest.mark.parametrize("root", ["", "/data/batches"])
def test_a_link_in_the_menu_where_there_is_a_batch_api(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_ROOT", root)
    name = "airflow_provider_raybatch.plugins.raybatch"
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)  # as a process of Airflow imports it
    found.loader.exec_module(module)
    views = {view["name"]: view for view in module.RayBatchPlugin.external_views}
    assert ("Batches" in views) == bool(root)
    if root:
        assert views["Batches"]["href"] == PAGE.lstrip("/")
