# SPDX-License-Identifier: Apache-2.0
"""What the extra of an aws connection says about reaching S3 is honoured on the cluster, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.secrets import seal, unseal
from airflow_provider_raybatch.exceptions import RayConnectionError
from airflow_provider_raybatch.hooks.credentials import aws_credentials, job_secrets
from airflow_provider_raybatch.storage.folder import folder
from tests.support.approved import AssertSentences
from tests.support.http_server import Authority
from tests.support.refusing_s3 import answering

pytest.importorskip("airflow.providers.amazon")


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the connection ``lake`` with an extra."""

    def make(**extra: Any) -> str:
        keys = {"login": "AKIA", "password": "secret"}
        text = json.dumps({"conn_type": "aws", **keys, "extra": {"region_name": "eu-west-1", **extra}})
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
        return "lake"

    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    return make


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("verify", ["file", False, "false"])
def test_verify_is_honoured_where_the_job_runs(
    lake: Any, tmp_path: Path, verify: Any, embedded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is on Airflow's machine only; a private Ray gets keys by its environment.

    As bundles of systems do, it names its authorities in comments of any encoding.
    """
    authority = Authority(tmp_path)
    authority.pem.write_bytes("# Főtanúsítvány, ".encode() + b"Autorit\xe9\n" + authority.pem.read_bytes())
    with answering(404, pem=authority.server()) as url:
        secrets = job_secrets(
            lake(endpoint_url=url, verify=str(authority.pem) if verify == "file" else verify), None
        )
        assert secrets is not None
        if embedded:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
            secrets = secrets.for_no_environment()
            assert secrets is not None
            assert "secret" not in str(secrets.revealed())
        authority.pem.unlink()
        assert folder("s3://bucket/out", unseal(seal(secrets, None), None).aws).head("x") is None


def test_private_ray_without_extras_needs_no_package(lake: Any) -> None:
    secrets = job_secrets(lake(verify=True), None)
    assert secrets is not None
    assert secrets.for_no_environment() is None


@pytest.mark.parametrize(
    ("style", "asked"), [("path", "http://s3.lake/bucket/out/x"), ("virtual", "http://bucket.s3.lake/out/x")]
)
def test_addressing_style_is_honoured(
    lake: Any, style: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a proxy, so that no name is looked up."""
    found: list[str] = []
    with answering(404, asked=found) as url:
        monkeypatch.setenv("HTTP_PROXY", url)
        given = {"endpoint_url": "http://s3.lake", "config_kwargs": {"s3": {"addressing_style": style}}}
        assert folder("s3://bucket/out", aws_credentials(lake(**given))).head("x") is None
    assert found == [asked]


@pytest.mark.parametrize(
    "config_kwargs",
    [
        {},
        {"signature_version": "s3v4"},
        {"retries": {"max_attempts": 3}, "connect_timeout": 5, "read_timeout": 60, "max_pool_connections": 9},
        {"s3": {"addressing_style": "auto"}},
    ],
)
def test_settings_that_change_nothing_are_taken(lake: Any, config_kwargs: dict[str, Any]) -> None:
    assert aws_credentials(lake(config_kwargs=config_kwargs)) == aws_credentials(lake())


def test_the_region_of_config_kwargs_is_honoured(lake: Any) -> None:
    found = aws_credentials(lake(region_name=None, config_kwargs={"region_name": "eu-north-1"}))
    assert found.region_name == "eu-north-1"


def test_the_certificate_of_sts_is_told_by_its_cause(lake: Any, tmp_path: Path) -> None:
    with answering(200, pem=Authority(tmp_path).server()) as url:
        connection = lake(role_arn="arn:aws:iam::1:role/lake", service_config={"sts": {"endpoint_url": url}})
        with pytest.raises(RayConnectionError, match=r"certificate.*set verify in its extra to the PEM file"):
            aws_credentials(connection)


def test_what_a_job_cannot_honour_is_refused(
    lake: Any, tmp_path: Path, assert_sentences: AssertSentences
) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")

    def refused(**extra: Any) -> None:
        if extra.get("verify") == "key.pem":
            extra["verify"] = str(tmp_path / "key.pem")
        aws_credentials(lake(**extra))

    assert_sentences(refused, RayConnectionError)
