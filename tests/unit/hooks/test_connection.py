# SPDX-License-Identifier: Apache-2.0
"""What the fields of a connection of type ``ray`` mean, and the errors of one that can't be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_raybatch.exceptions import RayBatchUnavailableException, RayConnectionError
from airflow_provider_raybatch.hooks.connection import read_connection
from airflow_provider_raybatch.hooks.extras import Extras
from airflow_provider_raybatch.hooks.ray import RayHook
from tests.support.airflow_tasks import connection
from tests.support.approved import AssertSentences
from tests.support.fake_ray import FakeRay


def read(**fields: Any) -> Any:
    return read_connection(Connection(conn_id="my_ray", conn_type="ray", **fields))


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "head"}, "http://head:8265"),
        ({"host": "head", "port": 9000}, "http://head:9000"),
        ({"host": "head", "port": 0}, "http://head:8265"),
        ({"host": "http://head:9000", "port": 0}, "http://head:9000"),
        ({"host": "ray.example.com", "schema": "https"}, "https://ray.example.com"),
        ({"host": "ray.example.com", "schema": "https", "port": 8443}, "https://ray.example.com:8443"),
        ({"host": "http://head"}, "http://head"),
        ({"host": "https://ray.example.com/team-a/"}, "https://ray.example.com/team-a"),
        ({"host": "https://ray.example.com:444", "schema": "http"}, "https://ray.example.com:444"),
        ({"host": "head", "extra": '{"path_prefix": "/ray/"}'}, "http://head:8265/ray"),
        ({"host": "fd00::1", "port": 1}, None),
        ({"host": "[fd00::1]", "port": 1}, "http://[fd00::1]:1"),
        ({"host": " local "}, ""),
        ({"host": None}, None),
        ({"host": ""}, None),
    ],
)
def test_url(fields: dict[str, Any], url: str | None) -> None:
    if url is None:
        with pytest.raises(RayConnectionError, match="field host"):
            read(**fields)
    else:
        assert (read(**fields).url or "") == url


def test_everything_arrives_in_the_address(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    extra = (
        '{"secret_headers": "{\\"X-Key\\": \\"h-secret\\"}", "secret_cookies": {"session": "c-secret"},'
        ' "connect_timeout": "3",'
        f' "request_timeout": 7, "ca_bundle": "{bundle}", "namespace": "team-a",'
        ' "secret_seal_key": "s-secret",'
        ' "dashboard_url": "https://people.example.com/"}'
    )
    found = read(host="head", password="t-secret", extra=extra)
    address = found.address()
    assert (address.token, address.headers, address.cookies) == (
        "t-secret",
        {"X-Key": "h-secret"},
        {"session": "c-secret"},
    )
    assert (address.connect_timeout, address.request_timeout, address.verify) == (3.0, 7.0, str(bundle))
    assert (found.namespace, found.secret_seal_key) == ("team-a", "s-secret")
    assert found.job_page("j-1") == "https://people.example.com/#/jobs/j-1"
    assert set(found.secrets) == {"t-secret", "h-secret", "c-secret", "s-secret"}
    assert "secret" not in repr(found) + repr(address)


@pytest.mark.parametrize(
    ("header", "value", "secret"),
    [
        ("Authorization", "Bearer ab12cd34ef56", "ab12cd34ef56"),
        ("X-Ray-Authorization", "bearer  ab12cd34ef56", "ab12cd34ef56"),
        ("Proxy-Authorization", "Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("Authorization", "opaque", "opaque"),
        ("X-Api-Key", "correct-horse", "correct-horse"),
        ("X-Functions-Code", "Zm9vYmFyYmF6cXV4MTIzNA==", "Zm9vYmFyYmF6cXV4MTIzNA=="),
        ("X-Id", "6f9619ff-8b86-d011-b42d-00c04fc964ff", "6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        ("X-Tenant", "team-a", None),
        ("X-Region", "eu-west-1", None),
        ("Accept", "application/json, text/plain", None),
        ("X-Debug", "true", None),
    ],
)
def test_of_a_header_only_what_is_secret_is_masked(header: str, value: str, secret: str | None) -> None:
    """A masked word is masked in each line of each log."""
    extra = json.dumps({"secret_headers": {header: value}})
    assert read(host="head", extra=extra).secrets == ([] if secret is None else [secret])


def test_unknown_extras_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """astro-provider-ray has connections of this type, too."""
    extra = {
        "address": "http://head:8265",
        "verfy": False,
        "create_cluster_if_missing": True,
        "verify": False,
    }
    assert read(host="head", extra=json.dumps(extra)).verify is False
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "Connection 'my_ray', field extra: 'address', 'create_cluster_if_missing', 'verfy' are not known "
        "here and without effect; known are ca_bundle,"
    )


def test_a_token_loses_its_line_feed() -> None:
    assert read(host="head", password="t-secret\n").token == "t-secret"


def test_null_and_an_empty_text_are_not_given() -> None:
    for nothing in (None, ""):
        extra = json.dumps(dict.fromkeys(Extras.model_fields, nothing))
        assert read(host="head", extra=extra) == read(host="head")
    assert read(host="head", extra='{"dashboard_url": " "}').dashboard_url is None


def test_tls_is_verified_by_default() -> None:
    assert read(host="head").address().verify is True
    assert read(host="head", extra='{"verify": " False "}').address().verify is False


def test_wrong_connection_is_one_sentence(assert_sentences: AssertSentences) -> None:
    def refused(**fields: Any) -> str:
        with pytest.raises(RayConnectionError) as caught:
            read(**fields)
        assert "1234567" not in str(caught.value)
        return str(caught.value)

    assert_sentences(refused)


@pytest.mark.parametrize("conn_id", ["ray_default", "no_such_ray"])
def test_a_missing_connection_is_an_error_with_its_remedy(conn_id: str) -> None:
    # Airflow also reports "not found" while a secrets backend is unreachable, so a retry may help.
    command = f"or create it with `airflow connections add {conn_id} --conn-type ray --conn-host "
    with pytest.raises(RayBatchUnavailableException, match=command) as caught:
        RayHook(conn_id).read()
    assert str(caught.value).startswith(f"Connection '{conn_id}' was not found, or Airflow could not read it")
    assert "; correct ray_conn_id, or create" in str(caught.value)


async def test_a_connection_that_airflow_denies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*args: Any) -> Any:
        raise PermissionError("Access denied")

    monkeypatch.setattr(RayHook, "get_connection", deny)
    monkeypatch.setattr(RayHook, "aget_connection", deny)
    with pytest.raises(RayConnectionError, match="denies this task access"):
        RayHook().read()
    with pytest.raises(RayConnectionError, match="denies this task access"):
        await RayHook().aread()


async def test_asynchronous_reading_gives_the_same(ray: FakeRay) -> None:
    assert await RayHook().aread() == RayHook().read()
    assert (await RayHook().aget_address()).url == ray.url


def test_a_private_ray_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection("local"))
    with pytest.raises(RayConnectionError, match="field host: 'local' names no cluster"):
        RayHook().get_address()


class TestTheTestButton:
    def test_reports_versions(self, ray: FakeRay) -> None:
        works, message = RayHook().test_connection()
        assert works
        assert message == f"Ray 2.60.0 answers at {ray.url}, session {ray.session_name}."

    def test_tells_a_wrong_token_apart(self, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
        ray.token = "right"
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, password="wrong-token"))
        works, message = RayHook().test_connection()
        assert not works
        assert "403" in message or "token" in message
        assert "wrong-token" not in message
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection(ray.url, password="right"))
        assert RayHook().test_connection()[0]

    def test_reports_a_wrong_field(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection("head", schema="grpc"))
        works, message = RayHook().test_connection()
        assert not works
        assert "field schema" in message

    def test_reports_what_a_private_ray_needs(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_RAY_DEFAULT", connection("local"))
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        works, message = RayHook().test_connection()
        assert not works
        assert "airflow-provider-raybatch[embedded]" in message

        package = tmp_path / "ray-2.60.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.60.0\n")
        works, message = RayHook().test_connection()
        assert works
        assert "private Ray 2.60.0" in message
