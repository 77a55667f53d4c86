# SPDX-License-Identifier: Apache-2.0
"""References to https: from hosts that are named, at public addresses, within bounds."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.job.media.allowed import WebFile
from airflow_provider_raybatch.job.media.stores import read_url
from airflow_provider_raybatch.job.row import ImageError
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.image_files import access
from tests.support.web import Answer, Web

URL = "https://hub.example/a.png"
HOSTS = frozenset({"hub.example", "cdn.example", "lake.internal", "10.0.0.5"})
FILE, SECRET = Answer(b"content"), Answer(b"secret")


@pytest.fixture(autouse=True)
def hosts(web: Web) -> None:
    web.host("cdn.example", "1.1.1.1")
    web.host("other.example", "9.9.9.9")
    web.host("lake.internal", "10.0.0.5")


def read(url: str = URL, **fields: object) -> bytes:
    return read_url(WebFile(url), access(**{"hosts": HOSTS, **fields}))


def refused(url: str = URL, **fields: object) -> str:
    with pytest.raises(ImageError) as caught:
        read(url, **fields)
    assert "signature" not in str(caught.value)
    return str(caught.value)


def failure_of_the_job(url: str = URL, **fields: object) -> StorageError:
    with pytest.raises(StorageError) as caught:
        read(url, **{"timeout": 0.5, **fields})
    return caught.value


def test_a_file_is_read(web: Web) -> None:
    web.serve(URL, FILE)
    assert read(f"{URL}?signature=1") == b"content"
    assert [set(asked.headers) for asked in web.asked] == [
        {"Host", "User-Agent", "Accept-Encoding", "Connection"}
    ]


def test_a_redirect_to_an_allowed_host_is_followed(web: Web) -> None:
    web.redirect(URL, "https://cdn.example/b.png")
    web.serve("https://cdn.example/b.png", FILE)
    assert read() == b"content"


@pytest.mark.parametrize(
    "to",
    [
        "https://other.example/b.png",
        "https://169.254.169.254/latest/meta-data",
        "https://cdn.example:8443/b.png",
        "https://user:signature@cdn.example/b.png",
        "http://cdn.example/b.png",
    ],
)
def test_a_redirect_out_of_image_hosts_is_refused(web: Web, to: str) -> None:
    web.serve(to, SECRET)
    web.redirect(URL, f"{to}?signature=1")
    text = refused()
    assert text.startswith(f"{URL} redirects to ")
    assert text.endswith("; images are read at public addresses of image_hosts alone: copy it into a bucket")
    assert web.reached == ["8.8.8.8"]


@pytest.mark.parametrize("url", ["https://lake.internal/a.png", "https://10.0.0.5/a.png"])
def test_a_private_address_is_refused_though_it_is_named(web: Web, url: str) -> None:
    web.serve(url, SECRET)
    assert "is at the private address 10.0.0.5" in refused(url)
    web.redirect(URL, url)
    assert "redirects to the private address 10.0.0.5" in refused()
    assert "10.0.0.5" not in web.reached


def test_a_name_that_changes_its_address_is_read_at_the_first(web: Web) -> None:
    web.host("hub.example", "8.8.8.8", "10.0.0.5")
    web.serve(URL, FILE)
    assert read() == b"content"
    assert web.reached == ["8.8.8.8"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 500, 501])
def test_a_refusal_of_one_file_fails_the_row(web: Web, status: int) -> None:
    web.serve(URL, Answer(b"no", status))
    assert (
        refused(f"{URL}?signature=1") == f"{URL} can't be read, the server answered {status}; check the URL"
    )
    assert len(web.asked) == 1


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_an_overloaded_host_is_asked_again(web: Web, status: int) -> None:
    web.serve(URL, Answer(b"no", status), Answer(b"no", status), FILE)
    assert read() == b"content"


def test_a_host_that_stays_overloaded_fails_the_job(web: Web) -> None:
    web.serve(URL, Answer(b"no", 503))
    error = failure_of_the_job(timeout=3.0)
    assert error.failure_class is FailureClass.STORAGE
    assert "can't read it (the server answered 503), tried for 3 s" in str(error)


def test_a_host_that_is_away_fails_the_job(web: Web) -> None:
    web.ports = {443: 1}  # where nothing listens
    assert "Connection refused" in str(failure_of_the_job())
    assert "tried for 0.5 s" in str(
        failure_of_the_job("https://no.invalid/a.png", hosts=frozenset({"no.invalid"}))
    )


def test_a_certificate_that_is_not_trusted_fails_the_job(web: Web) -> None:
    web.serve("https://other.example/a.png", SECRET)
    error = failure_of_the_job("https://other.example/a.png", hosts=frozenset({"other.example"}))
    assert error.failure_class is FailureClass.USER_ERROR
    assert "SSL_CERT_FILE" in str(error)


@pytest.mark.parametrize("slow", ["headers", "body"])
def test_a_server_that_sends_byte_by_byte_fails_the_row(web: Web, slow: str) -> None:
    """Each byte comes in time for a socket's timeout, and all of them would take minutes."""
    web.serve(URL, Answer(b"x" * 60_000, slow=slow))
    assert "did not arrive within the 0.5 s of image_timeout" in refused(timeout=0.5)


def test_a_server_that_falls_silent_fails_the_row(web: Web) -> None:
    web.serve(URL, Answer(b"x" * 10, slow="body", pause=30))
    assert "did not arrive within the 0.5 s of image_timeout" in refused(timeout=0.5)


@pytest.mark.parametrize(
    "answer",
    [Answer(b"12345678"), Answer(b"12345678", length=None), Answer(b"1", length=10**12)],
    ids=["promised", "endless", "promised but not sent"],
)
def test_more_than_max_image_bytes_are_not_read(web: Web, answer: Answer) -> None:
    web.serve(URL, answer)
    assert "has more than the 7 bytes of max_image_bytes" in refused(most_bytes=7)


def test_a_body_ends_at_its_content_length(web: Web) -> None:
    web.serve(URL, Answer(b"content and more", length=7))
    assert read() == b"content"
    web.serve(URL, Answer(b"content", length=8))
    assert "came only in part" in refused()


def test_an_answer_that_is_not_http_fails_the_row(web: Web) -> None:
    web.serve(URL, Answer(b"", headers={f"X-{number}": "1" for number in range(200)}))
    assert "can't be read" in refused()
