# SPDX-License-Identifier: Apache-2.0
"""A store that is missing, not writable or does not answer."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.responses import Faulty, Shop, raising, table
from tests.support.s3_server import S3Server


@pytest.mark.parametrize(
    ("word", "operation"),
    [("v1/index", "list"), ("v1/index/s", "read_range"), ("v1/data/s", "read_range")],
)
def test_store_that_does_not_answer_is_a_retryable_error(
    disk: LocalFolder, word: str, operation: str
) -> None:
    # Without the error, the job would silently pay for stored responses.
    Shop(disk).store().add("s", [table([1])])
    shop = Shop(Faulty(disk, word, raising(operation)))
    with pytest.raises(StorageError, match=rf"^reuse: .*can't {operation} it") as caught:
        shop.answers([1])
    assert caught.value.failure_class is FailureClass.STORAGE
    assert shop.notices == []


def test_preflight_passes_where_the_store_can_be_used(shop: Shop) -> None:
    shop.store().prepare()
    shop.store().prepare()
    assert [entry.path for entry in shop.folder.list()] == ["v1/store.json"]


def test_preflight_refuses_a_bucket_that_does_not_exist(s3_server: S3Server) -> None:
    with pytest.raises(StorageError) as caught:
        Shop(S3Folder("no-such-bucket", "x", s3_server.credentials)).store().prepare()
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert str(caught.value) == (
        "reuse: s3://no-such-bucket/x/v1/store.json: can't write it, the bucket does not exist; check "
        "its name."
    )
