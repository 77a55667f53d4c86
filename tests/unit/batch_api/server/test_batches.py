# SPDX-License-Identifier: Apache-2.0
"""``/v1/batches`` of two servers over one folder, in front of a real Airflow API server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider_raybatch.batch_api.server.app import make_batch_app
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.server.runs import AirflowRuns
from airflow_provider_raybatch.batch_api.store.ids import new_batch_id
from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, batch_store
from airflow_provider_raybatch.contract import layout
from tests.support.airflow_server import Server, token
from tests.support.batch_api import DAY, lines, uploaded
from tests.support.batch_runs import CHAT

MODELS = {"small": {"model": "echo", "engine": "echo", "dag_id": "nightly"}}


class Api:
    """Two servers of the Batch API, which answer in turn."""

    def __init__(self, clients: list[TestClient], airflow: Server, store: BatchStore) -> None:
        self._clients = clients
        self.airflow = airflow
        self.store = store

    def call(self, method: str, path: str, user: str | None = "ann", **options: Any) -> Any:
        self._clients.reverse()
        headers = options.pop("headers", {})
        login = {} if user is None else {"Authorization": f"Bearer {token(user)}"}
        return self._clients[0].request(method, f"/batches{path}", headers={**login, **headers}, **options)

    def file(self, owner: str = "ann") -> str:
        return uploaded(self.store, lines(), owner=owner).id

    def create(self, file_id: str | None = None, user: str = "ann", **given: Any) -> Any:
        headers = given.pop("headers", {})
        body = {"input_file_id": file_id or self.file(user), "endpoint": CHAT, "completion_window": "24h"}
        return self.call("POST", "", user, json={**body, **given}, headers=headers)

    def runs(self, dag_id: str = "nightly") -> list[str]:
        path = f"/api/v2/dags/{dag_id}/dagRuns?limit=1000"
        return [run["dag_run_id"] for run in self.airflow.get(path).json()["dag_runs"]]


@pytest.fixture
def api(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_SECRET", "s" * 40)
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", json.dumps(MODELS))
    settings, apps = batch_api_settings(), [make_batch_app(), make_batch_app()]
    assert settings is not None
    first, second = (TestClient(app, raise_server_exceptions=False) for app in apps if app is not None)
    with first, second:
        yield Api([first, second], server, batch_store(settings))


def test_a_batch_of_the_wire(api: Api) -> None:
    before = time.time()
    expiry = {"anchor": "created_at", "seconds": 3600}
    answer = api.create(metadata={"job": "nightly"}, output_expires_after=expiry)
    batch = answer.json()
    assert answer.status_code == 200
    assert (batch["object"], batch["status"], batch["model"]) == ("batch", "validating", "small")
    assert batch["metadata"] == {"job": "nightly"}
    assert int(before) <= batch["created_at"] == batch["expires_at"] - DAY
    assert api.call("GET", f"/{batch['id']}").json() == batch
    assert batch["id"] in api.runs()
    record = api.store.record(batch["id"])
    assert record is not None
    assert (record.owner, record.outputs_expire_after) == ("ann", 3600)


def test_creates_that_wait_for_airflow_keep_no_others_out(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of Airflow's connections that they held would keep the event loop waiting, too."""
    batch, files = api.create().json()["id"], [api.file() for _ in range(40)]
    go, begun = threading.Event(), threading.Semaphore(0)

    def check(*_: Any) -> None:
        begun.release()
        go.wait(60)
        raise OpenAiError(503, "It is away.")

    monkeypatch.setattr(AirflowRuns, "check", check)
    with ThreadPoolExecutor(40) as pool:
        creates = [pool.submit(api.create, file_id) for file_id in files]
        for _ in range(8):  # of two servers
            assert begun.acquire(timeout=60)
        status = api.call("GET", f"/{batch}").status_code
        others = begun.acquire(blocking=False)
        go.set()
    assert (status, others) == (200, False)
    assert {one.result().status_code for one in creates} == {503}


def test_a_key_in_a_header_means_one_batch(api: Api) -> None:
    file_id = api.file()
    first = api.create(file_id, headers={"Idempotency-Key": "k"})
    assert api.create(file_id, headers={"Idempotency-Key": "k"}).json()["id"] == first.json()["id"]
    other = api.create(file_id, headers={"Idempotency-Key": "k"}, completion_window="1h")
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_error")


def test_a_caller_whom_airflow_lets_make_no_runs(api: Api) -> None:
    answer = api.create(user="viewer")
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    assert api.call("GET", "", "viewer").json()["data"] == []


def test_batches_of_others_are_not_found(api: Api) -> None:
    batch_id = api.create().json()["id"]
    unknown = new_batch_id()
    for user in ("bob", "admin"):
        for method, path in (("GET", ""), ("POST", "/cancel")):
            theirs = api.call(method, f"/{batch_id}{path}", user)
            missing = api.call(method, f"/{unknown}{path}", user)
            assert theirs.status_code == missing.status_code == 404
            assert theirs.text.replace(batch_id, "") == missing.text.replace(unknown, "")
        assert api.call("GET", "", user).json()["data"] == []
    assert api.call("GET", f"/{batch_id}").json()["status"] == "validating"
    assert api.call("GET", f"/{batch_id}", None).status_code == 401


def test_pages_have_each_batch_once_newest_first(api: Api) -> None:
    file_id = api.file()
    made = [api.create(file_id).json()["id"] for _ in range(5)]
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = api.call("GET", "", params={"limit": "2", **after}).json()
        seen += [batch["id"] for batch in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert seen == made[::-1]
    assert [batch["id"] for batch in api.call("GET", "").json()["data"]] == seen
    assert api.call("GET", "", params={"limit": "101"}).status_code == 400


def test_pages_begin_behind_own_batches_alone(api: Api) -> None:
    """A batch of another user is refused in the same words as one that there is not."""
    batch_id, unknown = api.create().json()["id"], new_batch_id()
    assert api.call("GET", "", params={"after": batch_id}).json()["data"] == []
    theirs, missing = (api.call("GET", "", "bob", params={"after": one}) for one in (batch_id, unknown))
    assert theirs.status_code == missing.status_code == 400
    assert theirs.text.replace(batch_id, "") == missing.text.replace(unknown, "")


def test_a_batch_is_cancelled_before_it_begins(api: Api) -> None:
    batch_id = api.create().json()["id"]
    cancelled = api.call("POST", f"/{batch_id}/cancel", json={}).json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["cancelling_at"] <= cancelled["cancelled_at"]
    assert api.call("POST", f"/{batch_id}/cancel").json() == cancelled


def test_a_damaged_batch_hides_itself_alone(api: Api) -> None:
    good, bad = api.create().json()["id"], api.create().json()["id"]
    api.store.root.write(f"{layout.batch_folder(bad)}/{layout.ENDED}", b"not signed")
    assert [batch["id"] for batch in api.call("GET", "").json()["data"]] == [good]
    assert api.call("GET", f"/{bad}").status_code == 503
