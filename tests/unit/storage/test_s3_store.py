# SPDX-License-Identifier: Apache-2.0
"""Which S3 connections are reused."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage.s3_store import s3_store


def test_another_environment_is_another_store(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    found = []
    for endpoint in ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:2"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        found.append(s3_store("bucket", None))
    assert found[0] is not found[1]
    assert found[1] is found[2]


def test_stores_of_old_credentials_are_let_go() -> None:
    """A server that renews the credentials of a role all day long would keep a connection pool for each."""
    pytest.importorskip("obstore")
    kept = [s3_store("bucket", AwsCredentials(region_name=f"region-{number}")) for number in range(40)]
    newest = AwsCredentials(region_name="region-39")
    assert s3_store("bucket", newest) is kept[39]
    assert s3_store("bucket", AwsCredentials(region_name="region-0")) is not kept[0]
