# SPDX-License-Identifier: Apache-2.0
"""Runs whose configuration or record is not what the server made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store.records import BatchRecord, signed
from airflow_provider_raybatch.batch_api.store.store import BatchStore
from airflow_provider_raybatch.exceptions import RayBatchFailException
from tests.support.batch_api import created
from tests.support.fake_ray import FakeRay
from tests.support.served_operator import ServedRun, operator

SECOND = "0123456789abcdef" * 2


def forged(store: BatchStore, record: BatchRecord, content: bytes) -> None:
    path = f"batches/{record.id}/record.json"
    store.root.delete([path])
    store.root.write(path, content)


@pytest.mark.parametrize("conf", [None, {}, {"batch_id": 5}, {"batch_id": "batch_" + SECOND}])
def test_a_configuration_of_no_batch_of_this_run_is_refused(
    ray: FakeRay, store: BatchStore, conf: Any
) -> None:
    run = ServedRun(created(store))
    run.conf = conf

    with pytest.raises(RayBatchFailException, match=r"conf: it must be .* the id of this run, but it is "):
        operator().execute(run.context())

    assert not ray.jobs


def test_a_configuration_has_nothing_else(ray: FakeRay, store: BatchStore) -> None:
    with pytest.raises(RayBatchFailException, match="the id of this run"):
        operator().execute(ServedRun(created(store), model="x").context())


def test_a_batch_that_is_not_there_is_refused(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    forged(store, record, b"")
    store.root.delete([f"batches/{record.id}/record.json"])

    with pytest.raises(RayBatchFailException, match=r"there is no batch .* below"):
        operator().execute(ServedRun(record).context())


@pytest.mark.parametrize("fields", [{"dag_id": "batches_large"}, {"model": "large"}])
def test_a_batch_of_another_dag_or_model_is_refused(
    ray: FakeRay, store: BatchStore, fields: dict[str, Any]
) -> None:
    record = created(store, **fields)
    run = ServedRun(record)
    run.ids["dag_id"] = "batches_small"

    with pytest.raises(RayBatchFailException, match=r"is a batch of DAG .* which serves 'small'"):
        operator().execute(run.context())

    assert not ray.jobs


def test_a_record_not_signed_by_this_airflow_is_refused(ray: FakeRay, store: BatchStore) -> None:
    record = created(store)
    theirs = created(store, owner="bob")
    changed = record.model_copy(update={"owner": "bob"})
    documents = [
        changed.model_dump_json().encode(),
        signed(changed, f"batch {record.id}", b"another secret of forty characters or so"),
        store.root.read(f"batches/{theirs.id}/record.json"),
        json.dumps({
            "record": changed.model_dump_json(),
            "signature": json.loads(store.root.read(f"batches/{record.id}/record.json"))["signature"],
        }).encode(),
    ]
    for content in documents:
        forged(store, record, content)
        with pytest.raises(RayBatchFailException, match="is not signed with this Airflow's"):
            operator().execute(ServedRun(record).context())
    assert not ray.jobs


def test_a_worker_without_the_setting_says_so(
    ray: FakeRay, store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = created(store)
    monkeypatch.delenv("AIRFLOW__RAYBATCH__BATCH_API_ROOT")

    with pytest.raises(RayBatchFailException, match="batch_api_root: it is not set on this machine"):
        operator().execute(ServedRun(record).context())
