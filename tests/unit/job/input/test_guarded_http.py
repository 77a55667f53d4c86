# SPDX-License-Identifier: Apache-2.0
"""Where a source may lead, and who can be at an address."""

from __future__ import annotations

import base64
import io
import socket

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.input import http
from airflow_provider_raybatch.job.input.guarded_http import Reach, reach_of
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.web import Answer, Web

PUBLIC, OTHER, PRIVATE, METADATA = "8.8.8.8", "1.1.1.1", "10.0.0.5", "169.254.169.254"
FILE = Answer(b'{"a": 1}\n', headers={"ETag": '"1"'})
SECRET = Answer(b"secret", headers={"ETag": '"1"'})


@pytest.fixture(autouse=True)
def hosts(web: Web) -> None:
    web.host("cdn.example", OTHER)
    web.host("lake.internal", PRIVATE)
    web.host("metadata.internal", METADATA)


def read(url: str) -> bytes:
    """Return a file's content, as a listing and a later copy read it."""
    size, version = http.size_and_version(url)
    into = io.BytesIO()
    assert http.fetch(url, size, version, into)
    return into.getvalue()


def refused(web: Web, url: str) -> str:
    """Return why neither the listing nor a later copy reads a file, nor asks its last server."""
    said = set()
    for call in (http.size_and_version, lambda url: http.fetch(url, 0, '"1"', io.BytesIO())):
        with pytest.raises(StorageError) as caught:
            call(url)
        assert caught.value.failure_class is FailureClass.USER_ERROR
        said.add(str(caught.value))
    assert {asked.url for asked in web.asked} <= {url.partition("?")[0]}
    (text,) = said
    assert "signature" not in text
    return text


@pytest.mark.parametrize(
    ("url", "to"),
    [
        ("https://hub.example/x.jsonl", "https://cdn.example/y"),
        ("https://hub.example/x.jsonl", "/y"),
        ("http://hub.example/x.jsonl", "https://cdn.example/y"),
        ("http://hub.example/x.jsonl", "http://cdn.example/y"),
        ("https://lake.internal/x.jsonl", "https://cdn.example/y"),
        ("http://lake.internal/x.jsonl", "http://10.0.0.6/y"),
        ("http://10.0.0.5/x.jsonl", "https://lake.internal/y"),
        ("http://127.0.0.1/x.jsonl", "http://[::1]/y"),
    ],
)
def test_a_redirect_is_followed(web: Web, url: str, to: str) -> None:
    web.redirect(url, f"{to}?signature=1")
    web.serve(to if "://" in to else f"https://hub.example{to}", FILE)
    assert read(url) == FILE.body


@pytest.mark.parametrize("code", [301, 303, 307, 308])
def test_every_kind_of_redirect_is_followed(web: Web, code: int) -> None:
    web.serve("https://hub.example/x", Answer(b"moved", code, {"Location": "https://cdn.example/y"}))
    web.serve("https://cdn.example/y", FILE)
    assert read("https://hub.example/x") == FILE.body


@pytest.mark.parametrize(
    "to",
    [
        *("https://lake.internal/x", "https://10.0.0.5/x", "https://127.0.0.1/x", "https://[::1]/x"),
        *("https://2130706433/x", "https://[::ffff:10.0.0.5]/x", "https://0x7f.1/x", "https://localhost/x"),
    ],
)
def test_a_public_host_does_not_lead_to_a_private_one(web: Web, to: str) -> None:
    web.serve(to, SECRET)
    url = web.redirect("https://hub.example/x.jsonl", f"{to}?signature=1")
    text = refused(web, f"{url}?signature=2")
    assert text.startswith("source: https://hub.example/x.jsonl redirects to the private address ")
    assert text.endswith(", which is not followed; name the file where it lies, or copy it into a bucket.")
    assert web.reached == [PUBLIC, PUBLIC]


def test_nor_does_it_over_other_hosts(web: Web) -> None:
    url = web.redirect("http://lake.internal/x.jsonl", "http://hub.example/y")
    web.redirect("http://hub.example/y", "http://10.0.0.6/z")
    web.serve("http://10.0.0.6/z", SECRET)
    with pytest.raises(
        StorageError, match=r"http://hub\.example/y redirects to the private address 10\.0\.0\.6"
    ):
        http.size_and_version(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/x.jsonl",
        "http://metadata.internal/x.jsonl",
        "http://2852039166/x.jsonl",
        "http://[::ffff:169.254.169.254]/x.jsonl",
        "http://[fe80::1]/x.jsonl",
        "http://168.63.129.16/x.jsonl",
    ],
)
def test_a_link_local_address_is_never_read(web: Web, url: str) -> None:
    web.serve(url, SECRET)
    assert f"source: {url} is at the link-local address " in refused(web, f"{url}?signature=1")
    assert web.reached == []
    web.redirect("http://10.0.0.5/x.jsonl", url)
    assert "redirects to the link-local address " in refused(web, "http://10.0.0.5/x.jsonl")


def test_one_private_address_of_several_refuses_the_name(web: Web) -> None:
    web.host("cdn.example", [OTHER, PRIVATE])
    web.serve("https://cdn.example/x", SECRET)
    assert PRIVATE in refused(web, web.redirect("https://hub.example/x.jsonl", "https://cdn.example/x"))


def test_another_address_is_tried_when_one_does_not_answer(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.host("cdn.example", ["9.9.9.9", OTHER])
    web.serve("https://cdn.example/x", FILE)
    connect = socket.create_connection

    def one_is_away(address: tuple[str, int], *arguments: object) -> socket.socket:
        if address[0] == "9.9.9.9":
            raise ConnectionRefusedError(111, "Connection refused")
        return connect(address, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "create_connection", one_is_away)
    assert read("https://cdn.example/x") == FILE.body


def test_a_server_proves_that_it_is_the_one_that_was_named(web: Web) -> None:
    web.host("other.example", OTHER)
    web.serve("https://other.example/x", SECRET)
    for url in ("https://other.example/x", web.redirect("https://hub.example/x", "https://other.example/x")):
        with pytest.raises(StorageError, match="Hostname mismatch"):
            http.size_and_version(url)


def test_a_name_is_read_at_the_address_that_was_checked(web: Web) -> None:
    """DNS rebinding: the second lookup of a name gives an address that the first one did not."""
    web.host("cdn.example", OTHER, PRIVATE)
    web.serve("https://cdn.example/x", FILE)
    url = web.redirect("https://hub.example/x", "https://cdn.example/x")
    assert http.size_and_version(url) == (9, '"1"')
    assert web.reached == [PUBLIC, OTHER]


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("http://cdn.example/y", "redirects to http://cdn.example/y"),
        ("https://user:word@cdn.example/y", "redirects to cdn.example with a login"),
    ],
)
def test_other_redirects_are_not_followed(web: Web, to: str, why: str) -> None:
    web.serve(to, SECRET)
    text = refused(web, web.redirect("https://hub.example/x.jsonl", to))
    assert why in text
    assert "word" not in text


@pytest.mark.parametrize("to", ["ftp://cdn.example/y", "file:///etc/passwd", "data:,x"])
def test_schemes_that_are_not_http_are_not_followed(web: Web, to: str) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(StorageError):
            http.size_and_version(web.redirect(f"{scheme}://hub.example/x.jsonl", to))


def test_redirects_in_a_circle_end(web: Web) -> None:
    for number in range(8):
        web.redirect(f"https://hub.example/{number}", f"https://hub.example/{number + 1}")
    with pytest.raises(StorageError, match="the server answered 302"):
        http.size_and_version("https://hub.example/0")
    assert len(web.asked) == 6


def test_what_belongs_to_a_host_is_not_sent_to_the_next(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login of a proxy is a header of the request, and the next host may be reached without the proxy."""
    monkeypatch.setenv("http_proxy", f"http://user:word@127.0.0.1:{web.ports[80]}")
    monkeypatch.setenv("no_proxy", "cdn.example")
    web.redirect("http://hub.example/x.jsonl", "http://cdn.example/y")
    web.serve("http://cdn.example/y", FILE)
    assert http.size_and_version("http://hub.example/x.jsonl") == (9, '"1"')
    first, second = web.asked
    login = base64.b64encode(b"user:word").decode()
    assert login in str(first.headers)
    assert login not in str(second.headers)
    assert not {"Referer", "Cookie", "Authorization"} & {*first.headers, *second.headers}


def test_behind_a_proxy_addresses_are_checked_too(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{web.ports[80]}")
    web.serve("http://unknown.example/x", FILE)  # a name that only the proxy knows
    assert read("http://unknown.example/x") == FILE.body
    web.asked.clear()
    for to in ("http://169.254.169.254/y", "http://10.0.0.5/y"):
        web.serve(to, SECRET)
        refused(web, web.redirect("http://unknown.example/x", to))


ADDRESSES = {
    Reach.PUBLIC: ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
    Reach.PRIVATE: [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "192.0.2.1"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:10.0.0.1", "::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"),
    ],
    Reach.NEVER: [
        *("169.254.169.254", "169.254.170.2", "fe80::1", "fe80::1%eth0", "168.63.129.16", "100.100.100.200"),
        *("fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::a9fe:a9fe"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:168.63.129.16"),
    ],
}


@pytest.mark.parametrize(
    ("address", "reach"), [(address, reach) for reach, several in ADDRESSES.items() for address in several]
)
def test_reach_of_an_address(address: str, reach: Reach) -> None:
    assert reach_of(address) is reach
