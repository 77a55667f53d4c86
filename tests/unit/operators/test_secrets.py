# SPDX-License-Identifier: Apache-2.0
"""Credentials reach the job and nothing else."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.local import head as embedded
from airflow_provider_raybatch.contract.secrets import unseal
from airflow_provider_raybatch.exceptions import (
    RayBatchException,
    RayBatchFailException,
    RayBatchUnavailableException,
)
from airflow_provider_raybatch.hooks.credentials import job_secrets
from airflow_provider_raybatch.operators.ray_job import RayJobOperator
from tests.support.airflow_tasks import Run, connection
from tests.support.approved import AssertSentences
from tests.support.batches import Died, batch, defer, die
from tests.support.fake_ray import FakeRay, lasting
from tests.support.refusing_s3 import answering

Environments = list[dict[str, str]]
HF = "hf_abcdefghijkl"
ROLE = "arn:aws:iam::123456789012:role/x"
AWS = {"login": "AKIAEXAMPLE12", "password": "aws-secret-value"}

needs_amazon = pytest.mark.skipif(
    importlib.util.find_spec("airflow.providers.amazon") is None,
    reason="Airflow's amazon provider is not installed",
)


@pytest.fixture(autouse=True)
def _connections(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = json.dumps({"conn_type": "generic", "password": f"{HF}\n"})  # as files have it
    extra = {"region_name": "eu-central-1", "endpoint_url": "http://s3.example.com:9000"}
    aws = json.dumps({"conn_type": "aws", **AWS, "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_HF", hf)
    monkeypatch.setenv("AIRFLOW_CONN_AWS", aws)


def travelled(ray: FakeRay) -> bytes:
    """Return the credentials from the package that the spec names."""
    return private_package(ray)["secrets"]


def private_package(ray: FakeRay) -> dict[str, bytes]:
    (job,) = ray.jobs.values()
    content = ray.packages[ray.spec(job.body)["submission"]["secrets_package"]]
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_secrets_travel_in_their_own_package(
    ray: FakeRay, run: Run, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    operator = batch(hf_conn_id="hf")
    result = operator.execute(run.context())
    assert unseal(travelled(ray), None).revealed() == {"hf_token": HF}
    (job,) = ray.jobs.values()
    everywhere_else = [
        json.dumps(job.body), json.dumps(ray.spec(job.body)), json.dumps(result), json.dumps(run.xcoms),
        json.dumps(run.store.values), caplog.text, capsys.readouterr().out, repr(vars(operator)),
    ]  # fmt: skip
    assert all(everywhere_else)
    assert not [text for text in everywhere_else if HF in text]


def test_secrets_are_sealed_where_the_cluster_has_a_key(
    ray: FakeRay, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Fernet.generate_key().decode()
    text = connection(ray.url, extra=json.dumps({"secret_seal_key": key}))
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", text)
    batch(hf_conn_id="hf").execute(run.context())
    assert HF.encode() not in travelled(ray)
    assert unseal(travelled(ray), key).revealed() == {"hf_token": HF}


def test_secrets_stay_out_of_a_deferred_tasks_records(ray: FakeRay, run: Run) -> None:
    ray.script = lasting(600)
    deferred = defer(run, hf_conn_id="hf")
    assert HF not in repr(deferred.trigger.serialize()) + repr(deferred.kwargs)


def test_without_connections_only_the_jobs_key_travels(ray: FakeRay, run: Run) -> None:
    batch().execute(run.context())
    assert set(private_package(ray)) == {"key"}


def test_connections_that_dont_serve(
    monkeypatch: pytest.MonkeyPatch, assert_sentences: AssertSentences
) -> None:
    def refused(aws: str | None, hf: str | None) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_EMPTY", json.dumps({"conn_type": "generic"}))
        job_secrets(aws, hf)

    assert_sentences(refused, RayBatchFailException)


def test_missing_amazon_provider_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.amazon.aws.hooks.base_aws", None)
    with pytest.raises(RayBatchFailException, match=r"install airflow-provider-raybatch\[amazon\]"):
        job_secrets("aws", None)


@pytest.fixture
def environments(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """Those of private Rays, which would need Ray installed: the fake Jobs API stands for them."""
    made: Environments = []

    @contextmanager
    def private_ray(log: Any, env: Mapping[str, str] | None = None) -> Iterator[ClusterAddress]:
        made.append(dict(env or {}))
        try:
            yield ClusterAddress(ray.url)
        finally:
            ray.end_jobs()

    monkeypatch.setattr(embedded, "embedded_cluster", private_ray)
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection("local"))
    return made


class TestPrivateRay:
    def test_gets_them_as_environment(self, ray: FakeRay, environments: Environments, run: Run) -> None:
        batch(hf_conn_id="hf").execute(run.context())
        assert environments == [{"HF_TOKEN": HF}]
        assert set(private_package(ray)) == {"key"}

    @needs_amazon
    def test_gets_aws_under_the_names_that_libraries_read(
        self, ray: FakeRay, environments: Environments, run: Run
    ) -> None:
        batch(aws_conn_id="aws").execute(run.context())
        assert environments == [
            {
                "AWS_ACCESS_KEY_ID": AWS["login"],
                "AWS_SECRET_ACCESS_KEY": AWS["password"],
                "AWS_REGION": "eu-central-1",
                "AWS_ENDPOINT_URL": "http://s3.example.com:9000",
            }
        ]

    @needs_amazon
    def test_gets_what_no_variable_says_as_package(
        self, ray: FakeRay, environments: Environments, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        extra = {"region_name": "eu-central-1", "verify": False}
        monkeypatch.setenv("AIRFLOW_CONN_AWS", json.dumps({"conn_type": "aws", **AWS, "extra": extra}))
        batch(aws_conn_id="aws").execute(run.context())
        assert travelled(ray) == b'raybatch-plain:{"aws": {"verify": false}}'

    def test_always_blocks(self, ray: FakeRay, environments: Environments, run: Run) -> None:
        result = batch(deferrable=True).execute(run.context())
        assert (result["rows"], result["dashboard_url"]) == (2, None)
        assert run.xcoms == {}

    def test_is_asked_for_nothing_once_it_is_gone(
        self, ray: FakeRay, environments: Environments, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operator = batch()
        monkeypatch.setattr(type(operator), "_follow", die)
        with pytest.raises(Died):
            operator.execute(run.context())
        ray.requests.clear()
        operator.on_kill()  # as the task runner does after an execution timeout
        assert ray.requests == []

    def test_cant_outlive_its_task(self, environments: Environments, run: Run) -> None:
        operator = RayJobOperator(task_id="t", entrypoint="x", wait_for_completion=False)
        with pytest.raises(
            RayBatchFailException, match="wait_for_completion: connection 'ray_default' has the host 'local'"
        ):
            operator.execute(run.context())
        assert environments == []


@needs_amazon
@pytest.mark.parametrize(
    ("extra", "kind", "sentence"),
    [
        ({"profile_name": "nobody"}, RayBatchFailException, "gives it no credentials.*nobody.*correct its"),
        ({"role_arn": ROLE}, RayBatchFailException, "gives it no credentials.*Not you.*correct its"),
        ({"role_arn": ROLE, "assume_role_method": "x"}, RayBatchFailException, "AWS gives it no credentials"),
        ({"config_kwargs": {"no_such_setting": 1}}, RayBatchFailException, "AWS gives it no credentials"),
        (
            {"role_arn": ROLE, "service_config": {"sts": {"endpoint_url": "http://127.0.0.1:9"}}},
            RayBatchUnavailableException,
            "gave no answer.*a retry asks again",
        ),
    ],
)
def test_role_without_credentials_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    refusing_sts: str,
    extra: dict[str, Any],
    kind: type[RayBatchException],
    sentence: str,
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    service = {"sts": {"endpoint_url": refusing_sts}}
    given = {"region_name": "eu-central-1", "service_config": service, **extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS", json.dumps({"conn_type": "aws", **AWS, "extra": given}))
    with pytest.raises(kind, match=f"Connection 'aws'.*{sentence}") as caught:
        job_secrets("aws", None)
    assert AWS["password"] not in str(caught.value)


@needs_amazon
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"login": "AKIAHALF"},
        {"extra": {"region_name": "eu-central-1", "endpoint_url": "http://s3.example.com"}},
        {"extra": {"aws_session_token": "alone"}},
        {"extra": {"profile_name": "empty"}},
    ],
)
def test_the_workers_own_identity_never_travels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, container_identity: str, fields: dict[str, Any]
) -> None:
    """boto3 finds this identity in the environment, in files and at the metadata address."""
    (tmp_path / "config").write_text("[profile empty]\nregion = eu-central-1\n")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key = worker-secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "worker-secret")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", container_identity)
    monkeypatch.setenv("AIRFLOW_CONN_BARE", json.dumps({"conn_type": "aws", **fields}))
    with pytest.raises(RayBatchFailException) as caught:
        job_secrets("bare", None)
    assert "Connection 'bare', fields login and password: it names no AWS identity" in str(caught.value)
    assert "leave aws_conn_id out (None) to use the identity of the cluster's nodes." in str(caught.value)


@needs_amazon
def test_a_named_profile_travels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[lake]\naws_access_key_id = AKIALAKE\naws_secret_access_key = lake-secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    text = json.dumps({"conn_type": "aws", "extra": {"profile_name": "lake"}})
    monkeypatch.setenv("AIRFLOW_CONN_PROFILE", text)
    secrets = job_secrets("profile", None)
    assert secrets is not None
    aws = secrets.revealed()["aws"]
    assert (aws["aws_access_key_id"], aws["aws_secret_access_key"]) == ("AKIALAKE", "lake-secret")


@pytest.fixture
def container_identity() -> Iterator[str]:
    """URL at which a worker in a container gets its identity."""
    given = {"AccessKeyId": "AKIACONTAINER", "SecretAccessKey": "worker-secret", "Token": "t",
             "Expiration": "2099-01-01T00:00:00Z"}  # fmt: skip
    with answering(200, json.dumps(given)) as url:
        yield url


@pytest.fixture
def refusing_sts() -> Iterator[str]:
    """URL of a service that refuses all requests, as AWS does."""
    code = "<Code>AccessDenied</Code><Message>Not you</Message>"
    with answering(403, f"<ErrorResponse><Error>{code}</Error></ErrorResponse>") as url:
        yield url
