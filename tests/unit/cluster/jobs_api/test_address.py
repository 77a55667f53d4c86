# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from pathlib import Path

import certifi
import pytest

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.contract.failures import SpecError
from tests.support.approved import AssertSentences


def test_path_prefix_is_kept():
    assert ClusterAddress("https://gate.example/ray/one").base == "https://gate.example/ray/one/"
    assert ClusterAddress("https://gate.example/ray/one/").base == "https://gate.example/ray/one/"


def test_token_becomes_a_bearer_unless_a_header_has_one():
    assert ClusterAddress("http://h", token="t").request_headers()["Authorization"] == "Bearer t"
    own = ClusterAddress("http://h", token="t", headers={"authorization": "Basic x"}).request_headers()
    assert own["authorization"] == "Basic x"
    assert "Authorization" not in own


@pytest.mark.parametrize("value", ["s3cret\n", "s3crét", " s3cret"])
@pytest.mark.parametrize("field", ["token", "headers", "cookies"])
def test_invalid_header_values_are_refused_and_not_shown(field, value):
    given = value if field == "token" else {"X-Key": value}
    with pytest.raises(SpecError, match="no header can hold") as raised:
        ClusterAddress("http://h", **{field: given})
    assert "s3c" not in str(raised.value)


async def test_unreadable_ca_bundle(tmp_path):
    (tmp_path / "empty.pem").write_text("nothing")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(SpecError, match="CA bundle"):
            await ClusterAddress("https://h", verify=str(tmp_path / name)).tls()


async def test_tls_is_set_up_once_and_only_for_https():
    assert await ClusterAddress("http://h").tls() is False
    first = await ClusterAddress("https://h").tls()
    assert isinstance(first, ssl.SSLContext)
    assert await ClusterAddress("https://other", token="t").tls() is first


async def test_a_replaced_ca_bundle_is_read_again(tmp_path):
    bundle = tmp_path / "ca.pem"
    shutil.copy(certifi.where(), bundle)
    address = ClusterAddress("https://h", verify=str(bundle))
    first = await address.tls()
    bundle.write_bytes(bundle.read_bytes() + b"\n")
    assert await address.tls() is not first


async def test_a_ca_bundle_on_a_slow_disk_leaves_the_loop_free(tmp_path):
    """A pipe stands for the disk: a read blocks until the test writes."""
    bundle = tmp_path / "ca.pem"
    os.mkfifo(bundle)
    reading = asyncio.create_task(ClusterAddress("https://h", verify=str(bundle)).tls())
    await asyncio.sleep(0.2)
    assert not reading.done()
    roots = await asyncio.to_thread(Path(certifi.where()).read_bytes)
    await asyncio.to_thread(bundle.write_bytes, roots)
    assert isinstance(await reading, ssl.SSLContext)


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


def test_wrong_addresses_are_one_sentence(assert_sentences: AssertSentences) -> None:
    def refused(url, **fields):
        with pytest.raises(SpecError) as caught:
            ClusterAddress(url, **fields)
        assert "me:hunter2" not in str(caught.value)
        assert "s3cret" not in str(caught.value)
        return caught.value

    assert_sentences(refused)
