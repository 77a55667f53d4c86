# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.cluster.address import ClusterAddress
from airflow_provider_raybatch.contract.failures import SpecError


def test_path_prefix_is_kept():
    assert ClusterAddress("https://gate.example/ray/one").base == "https://gate.example/ray/one/"
    assert ClusterAddress("https://gate.example/ray/one/").base == "https://gate.example/ray/one/"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("host:8265", "no http(s) url"),
        ("ray://host:10001", "no http(s) url"),
        ("http://", "no http(s) url"),
        ("http://host:port", "is no url"),
        ("http://host:8265?a=1", "must end at its path"),
        ("http://host:8265/#jobs", "must end at its path"),
        ("http://me:secret@host:8265", "carries a login"),
    ],
)
def test_wrong_urls_get_their_sentence(url, told):
    with pytest.raises(SpecError, match=r"^url: ") as raised:
        ClusterAddress(url)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


def test_token_becomes_a_bearer_unless_a_header_says_otherwise():
    assert ClusterAddress("http://h", token="t").request_headers()["Authorization"] == "Bearer t"
    own = ClusterAddress("http://h", token="t", headers={"authorization": "Basic x"}).request_headers()
    assert own["authorization"] == "Basic x"
    assert "Authorization" not in own


@pytest.mark.parametrize("value", ["s3cret\n", "s3cret\x00", "s3crét", "s3cret ", " s3cret"])
@pytest.mark.parametrize("field", ["token", "headers", "cookies"])
def test_values_that_no_header_can_hold_are_refused_and_not_shown(field, value):
    given = value if field == "token" else {"X-Key": value}
    with pytest.raises(SpecError, match="no header can hold") as raised:
        ClusterAddress("http://h", **{field: given})
    assert "s3c" not in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [{"token": "s3cret\n", "headers": {"token": "a"}}, {"headers": {"a": "s3cret\n"}, "cookies": {"a": "a"}}],
)
def test_no_value_hides_behind_another_of_its_name(fields):
    with pytest.raises(SpecError, match="no header can hold"):
        ClusterAddress("http://h", **fields)


@pytest.mark.parametrize("name", ["X Key", "X-Key:", "", "X-Schlüssel"])
@pytest.mark.parametrize("field", ["headers", "cookies"])
def test_names_that_no_header_can_hold_are_refused(field, name):
    with pytest.raises(SpecError, match="is no name of a header or cookie") as raised:
        ClusterAddress("http://h", **{field: {name: "s3cret"}})
    assert "s3cret" not in str(raised.value)


def test_requests_do_not_look_like_a_browser():
    headers = ClusterAddress("http://h").request_headers()
    assert "Mozilla" not in headers["User-Agent"]
    assert not {"Origin", "Referer"} & set(headers)


def test_secrets_stay_out_of_the_representation():
    shown = repr(
        ClusterAddress("http://h", token="s3cret", headers={"X-Key": "s3cret"}, cookies={"sid": "s3cret"})
    )
    assert "s3cret" not in shown


def test_unreadable_ca_bundle(tmp_path):
    for bundle in (tmp_path / "missing.pem", tmp_path / "empty.pem"):
        (tmp_path / "empty.pem").write_text("nothing")
        with pytest.raises(SpecError, match="CA bundle"):
            ClusterAddress("https://h", verify=str(bundle)).tls()


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://10.0.0.1", False),
    ],
)
def test_loopback(url, loopback):
    assert ClusterAddress(url).is_loopback is loopback
